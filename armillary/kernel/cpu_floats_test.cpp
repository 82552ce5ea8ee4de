// fp32 in instruction sets that multiply it as several bf16 parts: as accurate as fp32 vectors,
// with the same NaN and Inf.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "armillary/kernel/testing/dealt_attention.h"
#include "tests/sanitized.h"

namespace armillary::kernel {
namespace {

using plan::Mask;

class CpuFloats : public KernelTest {};

INSTANTIATE_TEST_SUITE_P(Isas, CpuFloats, testing::ValuesIn(isa_names()),
                         [](const auto& test) { return test.param; });

Deal at_once(const Mask& mask, std::int64_t heads) {
  return {.q_blocks = {run(0, mask.q_len())},
          .k_blocks = {run(0, mask.kv_len())},
          .q_heads = {{0, heads}}};
}

Results in_fp64(const Sequences& x, const Mask& mask, double scale = 0.125) {
  return dealt_attention(reference(), to_double(x), mask, at_once(mask, x.q_BSHD.size(2)),
                         Score{.scale = scale});
}

// Root mean square errors, which depend less on the random draw than the largest error does.
TEST_P(CpuFloats, ErrorsAreAtMostThreeTimesThoseOfVectors) {
  if (sanitizer_samples()) GTEST_SKIP() << "[SKIP] about rounding, not about memory";
  const std::pair<std::string, double> cases[] = {
      {"full", 0.125}, {"causal", 0.125}, {"window:left=60,right=0", 0.125}, {"full", 2.5}};
  for (const auto& one : cases) {
    if (samples(is_emulated()) && &one != cases + 1) continue;
    const std::string& text = one.first;
    const double scale = one.second;
    const Mask mask = plan::parse_mask(text, {.q = 333, .kv = 333});
    const Sequences x = random_sequences(
        {.heads = 4, .kv_heads = 2, .head_dim = 250, .value_dim = 72}, mask, at::kFloat, 11);
    const Results exact = in_fp64(x, mask, scale);
    const auto errors_of = [&](const Kernel& kernel) {
      std::map<std::string, double> errors;
      for_each_result(dealt_attention(kernel, x, mask, at_once(mask, 4), Score{.scale = scale}),
                      exact, [&](const char* name, const at::Tensor& a, const at::Tensor& b) {
                        if (a.numel() < 1000)
                          return;  // the mean of few numbers depends on the draw
                        errors[name] =
                            (a.to(at::kDouble) - b).square().mean().sqrt().item<double>();
                      });
      return errors;
    };
    const std::map<std::string, double> vectors = errors_of(cpu_kernel("portable"));
    for (const auto& [name, error] : errors_of(kernel())) {
      EXPECT_LE(error, 3 * vectors.at(name)) << name << ", " << text << ", " << scale;
      if (scale < 1) {
        EXPECT_LE(error, 1e-5) << name << ", " << text;
      }
    }
  }
}

// Products of queries and keys overflow or underflow fp32 unless they are scaled first.
TEST_P(CpuFloats, ScoresThatOnlyTheScaleBringsBack) {
  const Mask mask = plan::parse_mask("causal", {.q = 100, .kv = 100});
  for (const double size : {1e19, 1e-17}) {
    Sequences x =
        random_sequences({.heads = 2, .kv_heads = 1, .head_dim = 64}, mask, at::kFloat, 5);
    x.q_BSHD.mul_(size);
    x.k_BSGD.mul_(size);
    const double scale = 0.125 / (size * size);
    const Results results =
        dealt_attention(kernel(), x, mask, at_once(mask, 2), Score{.scale = scale});
    const Results exact = in_fp64(x, mask, scale);
    EXPECT_LE(relative_error(results.out_BSHE, exact.out_BSHE), 1e-5) << size;
    EXPECT_LE(relative_error(results.lse_BSH, exact.lse_BSH), 1e-5) << size;
    EXPECT_LE(relative_error(results.dv_BSGE, exact.dv_BSGE), 1e-5) << size;
  }
}

// Thousands of equal weights, each a small part of the sum. If they were added one by one, each
// addition would be rounded in the same direction.
TEST_P(CpuFloats, SmallEqualWeightsAddUp) {
  const Mask mask = plan::full_mask({.q = 1, .kv = 3000});
  for (const double score : {-4.7, -5.3, -6.1}) {
    Sequences x = random_sequences({.heads = 1, .kv_heads = 1, .head_dim = 16, .value_dim = 16},
                                   mask, at::kFloat, 7);
    x.q_BSHD.fill_(0.25);
    x.k_BSGD.fill_(score / 4);
    x.k_BSGD.select(1, 0).zero_();
    const Deal deal{
        .q_blocks = {run(0, 1)}, .k_blocks = {run(0, 1000), run(1000, 3000)}, .q_heads = {{0, 1}}};
    const double exact = std::log1p(2999 * std::exp(score));
    const Results results = dealt_attention(kernel(), x, mask, deal, Score{.scale = 1});
    EXPECT_NEAR(results.lse_BSH.item<double>(), exact, 1e-6 * exact) << score;
  }
}

// A key of score -inf has no weight; an infinite value makes the rows that see it infinite. Naive
// products of the parts of an infinite factor, or with later parts that are 0, would be NaN.
TEST_P(CpuFloats, InfiniteFactorsAreThoseOfTheReference) {
  const Mask mask = plan::parse_mask("causal", {.q = 100, .kv = 100});
  Sequences x = random_sequences({.heads = 2, .kv_heads = 1, .head_dim = 40, .value_dim = 36}, mask,
                                 at::kFloat, 3);
  x.q_BSHD.select(3, 5).fill_(0.5);
  x.k_BSGD.select(1, 66).select(2, 5).fill_(-kInf);
  x.v_BSGE.select(1, 40).select(2, 7).fill_(kInf);
  const Results results =
      dealt_attention(kernel(), x, mask, at_once(mask, 2), Score{.scale = 0.125});
  const Results exact = in_fp64(x, mask);
  const auto same = [](const at::Tensor& a, const at::Tensor& b) {
    return at::allclose(a.to(at::kDouble), b, 1e-4, 1e-5, /*equal_nan=*/true);
  };
  EXPECT_TRUE(same(results.out_BSHE, exact.out_BSHE));
  EXPECT_TRUE(same(results.lse_BSH, exact.lse_BSH));
  EXPECT_TRUE(same(results.dv_BSGE, exact.dv_BSGE));
  EXPECT_TRUE(results.out_BSHE.isinf().any().item<bool>());
  EXPECT_FALSE(results.out_BSHE.isnan().any().item<bool>());

  x.q_BSHD.select(1, 20).select(2, 5).fill_(-kInf);
  x.k_BSGD.select(1, 66).select(2, 5).fill_(0.25);
  x.k_BSGD.select(1, 3).select(2, 5).fill_(-0.25);
  EXPECT_TRUE(
      same(dealt_attention(kernel(), x, mask, at_once(mask, 2), Score{.scale = 0.125}).lse_BSH,
           in_fp64(x, mask).lse_BSH));
}

}  // namespace
}  // namespace armillary::kernel
