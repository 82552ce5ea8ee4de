// The features of score.h, and sinks, in every kernel: against one softmax over all keys,
// against PyTorch's own attention, against finite differences, and the rules of every kernel again.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "armillary/kernel/reference.h"
#include "armillary/kernel/testing/dealt_attention.h"
#include "armillary/kernel/testing/feature_sets.h"
#include "armillary/kernel/testing/nonfinite_values.h"
#include "tests/finite_differences.h"
#include "tests/sanitized.h"

namespace armillary::kernel {
namespace {

using plan::Mask;

class FeatureRules : public KernelTest {
 protected:
  Results dealt(const Sequences& x, const Mask& mask, const Deal& deal,
                const Features& features) const {
    return dealt_attention(kernel(), x, mask, deal, features);
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels, FeatureRules, testing::ValuesIn(kernel_names()),
                         [](const auto& test) { return test.param; });

Results naive(const Sequences& x, const Mask& mask, const Features& features) {
  return naive_attention(x, mask, features.score, features.sinks_H);
}

Deal one_deal(const Mask& mask, std::int64_t heads) {
  return {.q_blocks = {run(0, mask.q_len())},
          .k_blocks = {run(mask.kv_len() / 2, mask.kv_len()), run(0, mask.kv_len() / 2)},
          .q_heads = {{0, heads}}};
}

TEST_P(FeatureRules, AloneAndTogetherEqualOneSoftmaxHoweverDealtOut) {
  constexpr std::int64_t kLength = 37;
  std::uint64_t seed = 100;
  for (const std::string text : {"causal", "documents:20,17,within=full",
                                 // Queries 20 to 24 see no key, keys 30 to 36 no query.
                                 "bands:0-20/0-30/-40..3;25-37/10-20/..;25-37/0-5/.."}) {
    const Mask mask = plan::parse_mask(text, {.q = kLength, .kv = kLength});
    for (const unsigned set : feature_sets()) {
      for (const HeadCase& heads : head_cases()) {
        ++seed;
        if (samples(is_emulated()) && seed % 5 != 0) continue;  // every set, all heads
        for (const at::ScalarType dtype : dtypes()) {
          const Sequences x = sequences_of(heads, mask, dtype, seed);
          const Features features = features_of(set, heads.heads, 0.3, seed);
          std::vector<Deal> all = deals(kLength);
          Deal& deal = all[seed % all.size()];
          deal.q_heads = heads.ranges;
          expect_near(dealt(x, mask, deal, features), naive(x, mask, features), tolerance(dtype),
                      fmt::format("{}, {}, {} of {} heads, {}, seed {}", describe_features(set),
                                  text, heads.heads, heads.kv_heads, c10::toString(dtype), seed));
        }
      }
    }
  }
}

// Cross-attention, head dims up to 256, value dims of their own, empty sides.
TEST_P(FeatureRules, LengthsAndHeadDimsMayDiffer) {
  for (const auto& [lengths, align] : std::vector<std::pair<plan::Lengths, plan::Align>>{
           {{.q = 9, .kv = 30}, plan::Align::End},
           {{.q = 30, .kv = 9}, plan::Align::End},  // The first 21 queries see nothing.
           {{.q = 30, .kv = 9}, plan::Align::Start},
           {{.q = 5, .kv = 0}, plan::Align::Start},
           {{.q = 0, .kv = 5}, plan::Align::Start}}) {
    const Mask mask = plan::causal_mask(lengths, align);
    for (const auto& [head_dim, value_dim] : {std::pair(256, 3), std::pair(64, 256)}) {
      const Sequences x = random_sequences(
          {.heads = 2, .kv_heads = 1, .head_dim = head_dim, .value_dim = value_dim}, mask, dtype(),
          3);
      for (const unsigned set : {0u, kAllFeatures}) {
        const Features features = features_of(set, 2, 1 / std::sqrt(head_dim));
        expect_near(dealt(x, mask, one_deal(mask, 2), features), naive(x, mask, features),
                    tolerance(dtype()),
                    fmt::format("{} queries, {} keys, dims {} and {}, {}", lengths.q, lengths.kv,
                                head_dim, value_dim, describe_features(set)));
      }
    }
  }
}

// Many mask tiles per call, whole and mixed.
TEST_P(FeatureRules, LongSequences) {
  if (sanitizer_samples() && is_emulated()) GTEST_SKIP() << "[SKIP] the paths of short ones";
  const Mask mask = plan::parse_mask("window:left=480,right=0", {.q = 900, .kv = 900});
  for (const at::ScalarType dtype : dtypes()) {
    const Sequences x =
        random_sequences({.heads = 3, .kv_heads = 1, .head_dim = 16}, mask, dtype, 5);
    const Features features = features_of(kAllFeatures, 3, 0.25);
    const Deal deal{.q_blocks = {{plan::run_of({0, 200}), plan::run_of({700, 900})}, run(200, 700)},
                    .k_blocks = {stripe(1, 2, 900), stripe(0, 2, 900)},
                    .q_heads = {{0, 3}}};
    const std::string name = c10::toString(dtype);
    const Results required = shared_results(name, [&] { return naive(x, mask, features); });
    expect_near(dealt(x, mask, deal, features), required, tolerance(dtype), name);
  }
}

/// PyTorch's attention in the dtype of the inputs. Slopes are a bias; a sink is one more key with
/// key 0 and value 0, whose score is its bias.
Results torch_attention(const Sequences& x, const Mask& mask, const Features& features) {
  const at::ScalarType dtype = x.q_BSHD.scalar_type();
  const auto leaf = [](const at::Tensor& t) { return t.detach().clone().requires_grad_(); };
  const at::Tensor q = leaf(x.q_BSHD);
  const at::Tensor k = leaf(x.k_BSGD);
  const at::Tensor v = leaf(x.v_BSGE);
  const at::Tensor sinks = leaf(features.sinks_H.to(dtype));
  const at::Tensor positions = at::arange(mask.q_len(), at::kDouble);
  const at::Tensor bias_HQK = (-features.score.alibi_slopes_H.to(at::kDouble).view({-1, 1, 1}) *
                               (positions.unsqueeze(1) - positions).abs())
                                  .masked_fill(hidden_matrix(mask), -kInf)
                                  .to(dtype);
  const at::Tensor sink_HQI = sinks.view({-1, 1, 1}).expand({-1, mask.q_len(), 1});
  const auto with_sink = [](const at::Tensor& x_BSGX) {
    return at::cat({x_BSGX, at::zeros_like(x_BSGX.narrow(1, 0, 1))}, 1).transpose(1, 2);
  };
  const at::Tensor out =
      at::scaled_dot_product_attention(q.transpose(1, 2), with_sink(k), with_sink(v),
                                       at::cat({bias_HQK, sink_HQI}, 2).unsqueeze(0), 0, false,
                                       features.score.scale)
          .transpose(1, 2);
  out.backward(x.dout_BSHE);
  return {out.detach(), {}, q.grad(), k.grad(), v.grad(), sinks.grad()};
}

TEST_P(FeatureRules, SlopesAndSinksEqualPyTorch) {
  const Mask mask = plan::parse_mask("causal", {.q = 60, .kv = 60});
  const Features features = features_of(kAlibi + kSinks, 4, 0.3);
  const Sequences x = random_sequences({.heads = 4, .kv_heads = 4}, mask, dtype(), 31);
  const Results torch = torch_attention(x, mask, features);
  const Results results = dealt(x, mask, one_deal(mask, 4), features);
  EXPECT_LE(relative_error(results.out_BSHE, torch.out_BSHE), tolerance(dtype()));
  EXPECT_LE(relative_error(results.dq_BSHD, torch.dq_BSHD), tolerance(dtype()));
  EXPECT_LE(relative_error(results.dk_BSGD, torch.dk_BSGD), tolerance(dtype()));
  EXPECT_LE(relative_error(results.dv_BSGE, torch.dv_BSGE), tolerance(dtype()));
  EXPECT_LE(relative_error(results.dsinks_H, torch.dsinks_H), tolerance(dtype()));
}

// With features, the error against fp64 is at most 2.5 times that of PyTorch in the same dtype.
TEST_P(FeatureRules, Bf16IsAsGoodAsPyTorch) {
  const Mask mask = plan::parse_mask("causal", {.q = 200, .kv = 200});
  const Features features = features_of(kAlibi + kSinks, 2, 0.2);
  const Sequences x =
      random_sequences({.heads = 2, .kv_heads = 2, .head_dim = 32}, mask, at::kBFloat16, 37);
  const Results torch = torch_attention(x, mask, features);
  const Results exact = naive(x, mask, features);
  Results results = dealt(x, mask, one_deal(mask, 2), features);
  for (at::Tensor* grad : {&results.dq_BSHD, &results.dk_BSGD, &results.dv_BSGE}) {
    *grad = grad->to(at::kBFloat16);  // as the last copy of a plan does
  }
  const auto expect = [&](const char* name, at::Tensor Results::*field) {
    EXPECT_LE(relative_error(results.*field, exact.*field),
              2.5 * relative_error(torch.*field, exact.*field))
        << name;
  };
  expect("out", &Results::out_BSHE);
  expect("dq", &Results::dq_BSHD);
  expect("dk", &Results::dk_BSGD);
  expect("dv", &Results::dv_BSGE);
  expect("dsinks", &Results::dsinks_H);
}

// Central differences of sum(out * dout) in every element of q, k, v and sinks, in fp64.
TEST_P(FeatureRules, GradientsEqualFiniteDifferences) {
  if (dtype() != at::kDouble) GTEST_SKIP() << "[SKIP] differences are taken in fp64";
  const Mask mask = plan::parse_mask("window:left=3,right=1", {.q = 6, .kv = 6});
  for (const unsigned set : feature_sets()) {
    Features features = features_of(set, 2, 0.6);
    if (features.sinks_H.defined()) features.sinks_H = features.sinks_H.to(at::kDouble);
    const Sequences x = random_sequences({.heads = 2, .kv_heads = 1, .head_dim = 2, .value_dim = 3},
                                         mask, at::kDouble, 41);
    const Deal deal = one_deal(mask, 2);
    const Results results = dealt(x, mask, deal, features);
    const auto loss = [&] {
      return (dealt(x, mask, deal, features).out_BSHE * x.dout_BSHE).sum().item<double>();
    };
    std::vector<std::pair<at::Tensor, at::Tensor>> leaves = {
        {x.q_BSHD, results.dq_BSHD}, {x.k_BSGD, results.dk_BSGD}, {x.v_BSGE, results.dv_BSGE}};
    if (features.sinks_H.defined()) leaves.emplace_back(features.sinks_H, results.dsinks_H);
    for (const auto& [input, gradient] : leaves) {
      expect_finite_differences(input, gradient, loss, describe_features(set));
    }
  }
}

TEST_P(FeatureRules, DropoutLeavesTheLogSumExpAlone) {
  const Mask mask = plan::parse_mask("causal", {.q = 40, .kv = 40});
  const Sequences x = random_sequences({}, mask, at::kFloat, 43);
  const Results without = dealt(x, mask, one_deal(mask, 1), features_of(0, 1, 0.3));
  const Results with = dealt(x, mask, one_deal(mask, 1), features_of(kDropout, 1, 0.3));
  EXPECT_TRUE(at::equal(without.lse_BSH, with.lse_BSH));
  EXPECT_FALSE(at::equal(without.out_BSHE, with.out_BSHE));
}

// Rule 2. A row without keys has only its sink.
TEST_P(FeatureRules, RowsWithoutKeysAreZero) {
  const Mask mask(8, 8, {{.q = {0, 3}, .k = {0, 8}}, {.q = {5, 8}, .k = {2, 4}}});
  const Sequences x = random_sequences({.heads = 2, .kv_heads = 1}, mask, at::kFloat, 7);
  for (const unsigned set : feature_sets()) {
    const Features features = features_of(set, 2, 1);
    const Results y = dealt(x, mask, one_deal(mask, 2), features);
    const at::Tensor lse = features.sinks_H.defined() ? features.sinks_H.expand({1, 2, 2})
                                                      : at::full({1, 2, 2}, -kInf);
    EXPECT_TRUE(at::equal(y.out_BSHE.slice(1, 3, 5), at::zeros({1, 2, 2, 8}))) << y.out_BSHE;
    EXPECT_TRUE(at::equal(y.lse_BSH.slice(1, 3, 5), lse)) << describe_features(set) << y.lse_BSH;
    EXPECT_TRUE(at::equal(y.dq_BSHD.slice(1, 3, 5), at::zeros({1, 2, 2, 8}))) << y.dq_BSHD;
  }
}

TEST_P(FeatureRules, NothingVisibleGivesNoGradientAndNoMaximum) {
  const Mask mask(4, 4, {});
  const Sequences x = random_sequences({.heads = 2, .kv_heads = 1}, mask, at::kFloat, 7);
  const Results y = dealt(x, mask, one_deal(mask, 2), features_of(kAllFeatures, 2, 1));
  for (const at::Tensor& zero : {y.out_BSHE, y.dq_BSHD, y.dk_BSGD, y.dv_BSGE, y.dsinks_H}) {
    EXPECT_TRUE(at::equal(zero, at::zeros_like(zero))) << zero;
  }
  EXPECT_TRUE(at::equal(y.max_logit_H, at::full({2}, -kInf))) << y.max_logit_H;
}

// Rule 3.
TEST_P(FeatureRules, NanAndInfinityReachOnlyWhatSeesThem) {
  const Mask mask = mask_of_nonfinite_values();
  for (const at::ScalarType dtype : dtypes()) {
    for (const double scale : {1.0, 0.3}) {
      SCOPED_TRACE(fmt::format("{}, scale {}", c10::toString(dtype), scale));
      const Features features = features_of(kAllFeatures, 2, scale);
      const Sequences finite = random_sequences({.heads = 2, .kv_heads = 1}, mask, dtype, 13);
      expect_nonfinite_values_stay(finite, naive(finite, mask, features), [&](const Sequences& x) {
        return dealt(x, mask, one_deal(mask, 2), features);
      });
    }
  }
}

// Rule 4. Products of 1e4 under a softcap of 30, and a distance of 10 million tokens.
TEST_P(FeatureRules, LargeScoresDoNotOverflow) {
  const Mask mask = plan::full_mask({.q = 2, .kv = 3});
  Sequences x = random_sequences({.head_dim = 2}, mask, at::kFloat, 17);
  x.q_BSHD = at::tensor({100, 1, -100, 1}, at::kFloat).view({1, 2, 1, 2});
  x.k_BSGD = at::tensor({100, 0, 100, -1, -100, 0}, at::kFloat).view({1, 3, 1, 2});
  Features capped = features_of(kSinks, 1, 1);
  capped.score.softcap = 30;
  capped.sinks_H.fill_(29.5);
  const Results results = dealt(x, mask, one_deal(mask, 1), capped);
  const Results required = naive(x, mask, capped);
  EXPECT_LE(relative_error(results.out_BSHE, required.out_BSHE), 1e-5);
  EXPECT_LE(relative_error(results.lse_BSH, required.lse_BSH), 1e-5);
  EXPECT_LE(relative_error(results.dv_BSGE, required.dv_BSGE), 1e-5);
  EXPECT_LE(relative_error(results.dsinks_H, required.dsinks_H), 1e-5);
  EXPECT_TRUE(at::equal(results.dq_BSHD, at::zeros_like(results.dq_BSHD)));  // 1e-289, saturated

  constexpr std::int64_t kFar = 10'000'000;
  const Mask far = plan::full_mask({.q = kFar, .kv = kFar});
  const Pairs pairs{.q_runs = run(kFar - 1, kFar),
                    .k_runs = {plan::run_of({0, 1}), plan::run_of({kFar - 1, kFar})},
                    .mask = &far,
                    .heads = {}};
  Partial carry{at::zeros({1, 1, 1, 1}), at::zeros({1, 1, 1})};
  clear(carry);
  kernel().attend(pairs,
                  {at::zeros({1, 1, 1, 1}),
                   at::zeros({1, 2, 1, 1}),
                   at::tensor({9.0, 3.0}, at::kFloat).view({1, 2, 1, 1}),
                   {.alibi_slopes_H = at::ones({1})}},
                  carry);
  EXPECT_EQ(carry.out_BLHE.item<float>(), 3);
  EXPECT_EQ(carry.lse_BLH.item<float>(), 0);
}

// Rule 5, as in reference_test.cpp: any work for 2^60 hidden pairs would not end.
TEST(Features, PairsThatNoBandTouchesCostNothing) {
  constexpr std::int64_t kRows = std::int64_t{1} << 30;
  const Mask mask(
      2 * kRows, 2 * kRows,
      {{.q = {0, kRows}, .k = {0, kRows}}, {.q = {kRows, 2 * kRows}, .k = {kRows, 2 * kRows}}});
  const at::Tensor rows = at::full({1, 1, 1, 8}, kNan).expand({1, kRows, 1, 8});
  const at::Tensor row = at::zeros({1, 1, 1});
  Partial carry{at::zeros({1, 1, 1, 8}).expand({1, kRows, 1, 8}), row.expand({1, kRows, 1}),
                at::full({1}, -kInf)};
  const Pairs pairs{
      .q_runs = run(0, kRows), .k_runs = run(kRows, 2 * kRows), .mask = &mask, .heads = {}};
  const Inputs inputs{rows, rows, rows, features_of(kAllFeatures, 1, 1).score};
  reference().attend(pairs, inputs, carry);
  InputGrads grads{carry.out_BLHE, carry.out_BLHE, carry.out_BLHE};
  reference().attend_grad(pairs, inputs, {rows, carry.lse_BLH, carry.lse_BLH}, grads);
  EXPECT_TRUE(at::equal(row, at::zeros({1, 1, 1}))) << row;
  EXPECT_EQ(carry.max_logit_H.item<float>(), -kInf);
}

// Rule 6.
TEST_P(FeatureRules, SameCallGivesTheSameBits) {
  const Mask mask = plan::parse_mask("causal", {.q = 700, .kv = 700});
  const Sequences x = random_sequences({.heads = 2, .kv_heads = 1}, mask, at::kFloat, 19);
  const Features features = features_of(kAllFeatures, 2, 1);
  for_each_result(dealt(x, mask, one_deal(mask, 2), features),
                  dealt(x, mask, one_deal(mask, 2), features),
                  [](const char* name, const at::Tensor& a, const at::Tensor& b) {
                    EXPECT_TRUE(at::equal(a, b)) << name;
                  });
}

// This also holds for attend_all, which knows the sinks.
TEST_P(FeatureRules, ANaNScoreIsTheLargestLogitBesideAnySink) {
  const Mask mask = plan::full_mask({.q = 9, .kv = 9});
  const Sequences x = random_sequences({.heads = 4, .kv_heads = 4}, mask, dtype(), 3);
  x.q_BSHD.select(1, 4).fill_(kNan);
  const at::Tensor sinks_H = at::tensor({0.5, -kInf, kInf, kNan}, at::kFloat);
  for (const bool all : {false, true}) {
    const Deal deal{
        .q_blocks = {run(0, 9)}, .k_blocks = {run(0, 9)}, .q_heads = {{0, 4}}, .all = all};
    const Results results =
        dealt_attention(kernel(), x, mask, deal, Features{{.scale = 0.3}, sinks_H});
    EXPECT_TRUE(results.max_logit_H.isnan().all().item<bool>()) << results.max_logit_H << all;
  }
}

// This holds for a NaN in any of several query row blocks.
TEST_P(FeatureRules, ANaNScoreIsTheLargestLogitOfAllBlocks) {
  const Mask mask = plan::full_mask({.q = 300, .kv = 9});
  for (const std::int64_t row : {4, 150, 290}) {
    const Sequences x = random_sequences({.heads = 2, .kv_heads = 1}, mask, dtype(), 3);
    x.q_BSHD.select(1, row).select(1, 0).fill_(kNan);  // of head 0
    for (const bool all : {false, true}) {
      const Deal deal{
          .q_blocks = {run(0, 300)}, .k_blocks = {run(0, 9)}, .q_heads = {{0, 2}}, .all = all};
      const at::Tensor max_logit_H =
          dealt_attention(kernel(), x, mask, deal, Score{.scale = 0.3}).max_logit_H;
      EXPECT_TRUE(max_logit_H[0].isnan().item<bool>()) << "row " << row << ": " << max_logit_H;
      EXPECT_TRUE(max_logit_H[1].isfinite().item<bool>()) << "row " << row << ": " << max_logit_H;
    }
  }
}

}  // namespace
}  // namespace armillary::kernel
