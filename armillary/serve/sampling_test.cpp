// sampling_test.cpp: greedy and drawn tokens, and what they depend on.
#include "armillary/serve/sampling.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "armillary/core/testing/expect_error.h"

namespace armillary::serve {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

at::Tensor logits_row(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble).to(at::kFloat);
}

TEST(Sampling, TakesTheMostLikelyToken) {
  EXPECT_EQ(next_token(logits_row({1, 3, 2}), {}, {}), 1);
  EXPECT_EQ(next_token(logits_row({kNone, 3, 3}), {}, {}), 1);
  EXPECT_EQ(next_token(logits_row({1, 3, 2}), {.temperature = 5, .top_k = 1}, {}), 1);
  EXPECT_EQ(next_token(logits_row({1, 3, 2}), {.temperature = 5, .top_p = 1e-9}, {}), 1);
}

/// 4,000 draws have the probabilities of the logits.
TEST(Sampling, DrawsByProbability) {
  const std::vector<double> probabilities{0.5, 0.3, 0.2};
  std::vector<double> logits;
  for (const double p : probabilities) logits.push_back(2 * std::log(p));
  std::vector<int> counts(3);
  for (std::int64_t i = 0; i < 4000; ++i) {
    ++counts[static_cast<std::size_t>(
        next_token(logits_row(logits), {.temperature = 2, .seed = 1}, {.position = i}))];
  }
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(counts[i] / 4000.0, probabilities[i], 0.03);
  }
}

TEST(Sampling, DrawsAmongTheMostLikely) {
  std::set<std::int64_t> by_k;
  std::set<std::int64_t> by_p;
  const at::Tensor logits_V =
      logits_row({std::log(0.1), std::log(0.4), std::log(0.3), std::log(0.2), kNone});
  for (std::int64_t i = 0; i < 200; ++i) {
    by_k.insert(next_token(logits_V, {.temperature = 1, .top_k = 3}, {.position = i}));
    by_p.insert(next_token(logits_V, {.temperature = 1, .top_p = 0.6}, {.position = i}));
  }
  EXPECT_EQ(by_k, (std::set<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(by_p, (std::set<std::int64_t>{1, 2}));
}

TEST(Sampling, DependsOnSeedSequenceAndPosition) {
  const at::Tensor logits_V = logits_row(std::vector<double>(1000));
  const auto draw = [&](std::uint64_t seed, std::uint64_t sequence, std::int64_t position) {
    return next_token(logits_V, {.temperature = 1, .seed = seed},
                      {.sequence = sequence, .position = position});
  };
  EXPECT_EQ(draw(1, 2, 3), draw(1, 2, 3));
  EXPECT_NE(draw(1, 2, 3), draw(2, 2, 3));
  EXPECT_NE(draw(1, 2, 3), draw(1, 3, 3));
  EXPECT_NE(draw(1, 2, 3), draw(1, 2, 4));
}

TEST(Sampling, Refuses) {
  const auto expect = [](const Sampling& sampling, const char* text) {
    EXPECT_THAT(error_of([&] { check_sampling(sampling); }), testing::HasSubstr(text));
  };
  expect({.temperature = -1}, "temperature -1 given; 0 or more");
  expect({.temperature = std::nan("")}, "0 or more");
  expect({.top_k = -2}, "top-k -2 given");
  expect({.top_p = 0}, "top-p 0 given; more than 0 and at most 1");
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(error_of([&] {
                  next_token(logits_row({1, bad}), {}, {});
                }),
                testing::HasSubstr("2 logits"));
  }
  EXPECT_THAT(error_of([&] { next_token(logits_row({kNone}), {}, {}); }),
              testing::HasSubstr("none of them finite"));
}

}  // namespace
}  // namespace armillary::serve
