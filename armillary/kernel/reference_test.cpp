// reference_test.cpp: the reference kernel against one softmax that is computed another way,
// whatever the deal of pairs over calls; odd shapes, rows without keys, large scores, and numbers
// that are not finite.
#include "armillary/kernel/reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "armillary/kernel/testing/dealt_attention.h"
#include "armillary/kernel/testing/naive_attention.h"
#include "armillary/kernel/testing/nonfinite_values.h"
#include "tests/sanitized.h"

namespace armillary::kernel {
namespace {

using plan::Mask;

using Rules = KernelTest;

INSTANTIATE_TEST_SUITE_P(Kernels, Rules, testing::ValuesIn(kernel_names()),
                         [](const auto& test) { return test.param; });

/// A sample has every third deal: each of the deals, and each of the heads in each dtype.
void expect_equal_to_one_softmax(const Kernel& kernel, const std::vector<at::ScalarType>& dtypes,
                                 const std::string& text, bool is_sample) {
  constexpr std::int64_t kLength = 37;
  const Mask mask = plan::parse_mask(text, {.q = kLength, .kv = kLength});
  std::uint64_t seed = 0;
  int number = 0;
  for (const HeadCase& heads : head_cases()) {
    for (const at::ScalarType dtype : dtypes) {
      ++seed;
      const Sequences x = sequences_of(heads, mask, dtype, seed);
      const Results required = naive_attention(x, mask, 0.3);
      for (Deal deal : deals(kLength)) {
        if (is_sample && number++ % 3 != 0) continue;  // there are 7 deals
        deal.q_heads = heads.ranges;
        expect_near(dealt_attention(kernel, x, mask, deal, 0.3), required, tolerance(dtype),
                    fmt::format("{} of {} heads, {}, seed {}", heads.heads, heads.kv_heads,
                                c10::toString(dtype), seed));
      }
    }
  }
}

TEST_P(Rules, EqualsOneSoftmaxHoweverItIsDealtOut) {
  for (const std::string text :
       {"full", "causal", "window:left=5,right=2", "prefix:9", "block_causal:8",
        "documents:10,0,3,24", "documents:20,17,within=full",
        // Queries 20 to 24 see no key, keys 30 to 36 no query.
        "bands:0-20/0-30/-40..3;25-37/10-20/..;25-37/0-5/.."}) {
    SCOPED_TRACE(text);
    expect_equal_to_one_softmax(kernel(), dtypes(), text, samples(is_emulated()));
  }
}

TEST_P(Rules, QueriesAndKeysOfDifferentLengths) {
  for (const auto& [lengths, align] : std::vector<std::pair<plan::Lengths, plan::Align>>{
           {{.q = 9, .kv = 30}, plan::Align::End},
           {{.q = 30, .kv = 9}, plan::Align::End},  // The first 21 queries see nothing.
           {{.q = 30, .kv = 9}, plan::Align::Start},
           {{.q = 5, .kv = 0}, plan::Align::Start},
           {{.q = 0, .kv = 5}, plan::Align::Start},
           {{.q = 1, .kv = 1}, plan::Align::Start},
           {{.q = 0, .kv = 0}, plan::Align::Start}}) {
    const Mask mask = plan::causal_mask(lengths, align);
    const Sequences x = random_sequences({.heads = 2, .kv_heads = 1}, mask, dtype(), 3);
    const Deal deal{.q_blocks = {run(0, lengths.q)},
                    .k_blocks = {run(lengths.kv / 2, lengths.kv), run(0, lengths.kv / 2)},
                    .q_heads = {{0, 2}}};
    const Deal all{.q_blocks = {run(0, lengths.q)},
                   .k_blocks = {run(0, lengths.kv)},
                   .q_heads = {{0, 2}},
                   .all = true};
    for (const Deal& dealt : {deal, all}) {
      expect_near(dealt_attention(kernel(), x, mask, dealt, 0.3), naive_attention(x, mask, 0.3),
                  tolerance(dtype()), fmt::format("{} queries, {} keys", lengths.q, lengths.kv));
    }
  }
}

// More keys than the CPU kernel packs at once.
TEST_P(Rules, ZeroQueryHeads) {
  const Mask mask = plan::full_mask({.q = 4, .kv = 9001});
  const Pairs pairs{.q_runs = run(0, 4), .k_runs = run(0, 9001), .mask = &mask, .heads = {}};
  const at::Tensor q = at::zeros({1, 4, 0, 256}, dtype());
  const at::Tensor k = at::ones({1, 9001, 1, 256}, dtype());
  const auto acc = accumulator(dtype());
  Partial carry{at::zeros({1, 4, 0, 256}, acc), at::zeros({1, 4, 0}, acc)};
  kernel().attend(pairs, {q, k, k, {}}, carry);
  AttentionOutput result{at::zeros_like(q), at::zeros({1, 4, 0}, acc)};
  kernel().attend_all(pairs, {q, k, k, {}}, {}, result);
  InputGrads grads{at::zeros_like(q), at::full_like(k, kNan), at::full_like(k, kNan)};
  kernel().attend_grad_all(pairs, {q, k, k, {}}, {q, result.lse_BLH, result.lse_BLH}, grads);
  EXPECT_TRUE(at::equal(grads.dk_BLGD, at::zeros_like(k)));
  EXPECT_TRUE(at::equal(grads.dv_BLGE, at::zeros_like(k)));
}

TEST_P(Rules, ZeroBatch) {
  const Mask mask = plan::full_mask({.q = 4, .kv = 4});
  const Sequences x = random_sequences({.batch = 0}, mask, at::kFloat, 3);
  const Deal deal{.q_blocks = {run(0, 4)}, .k_blocks = {run(0, 4)}, .q_heads = {{0, 1}}};
  EXPECT_EQ(dealt_attention(kernel(), x, mask, deal, 1).out_BSHE.numel(), 0);
}

// Many mask tiles per call, whole and mixed, for several query heads.
TEST_P(Rules, LongSequences) {
  for (const std::string text : {"causal", "window:left=480,right=0", "documents:620,20,260"}) {
    if (sanitizer_samples() && text != "documents:620,20,260") continue;  // has all kinds of tiles
    const Mask mask = plan::parse_mask(text, {.q = 900, .kv = 900});
    for (const at::ScalarType dtype : dtypes()) {
      const Sequences x =
          random_sequences({.heads = 3, .kv_heads = 1, .head_dim = 16}, mask, dtype, 5);
      const Deal deal{
          .q_blocks = {{plan::run_of({0, 200}), plan::run_of({700, 900})}, run(200, 700)},
          .k_blocks = {stripe(1, 2, 900), stripe(0, 2, 900)},
          .q_heads = {{0, 3}}};
      const std::string name = fmt::format("{} {}", text, c10::toString(dtype));
      const Results required = shared_results(name, [&] { return naive_attention(x, mask, 0.25); });
      expect_near(dealt_attention(kernel(), x, mask, deal, 0.25), required, tolerance(dtype), name);
    }
  }
}

/// PyTorch's own attention in the dtype of the inputs.
Results torch_attention(const Sequences& x, const Mask& mask, double scale) {
  const auto leaf = [](const at::Tensor& t) { return t.detach().clone().requires_grad_(); };
  const at::Tensor q = leaf(x.q_BSHD);
  const at::Tensor k = leaf(x.k_BSGD);
  const at::Tensor v = leaf(x.v_BSGE);
  const at::Tensor out =
      at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                       hidden_matrix(mask).logical_not(), 0, false, scale)
          .transpose(1, 2);
  out.backward(x.dout_BSHE);
  return {out.detach(), {}, q.grad(), k.grad(), v.grad()};
}

// The error against fp64 is at most 2.5 times that of PyTorch on one device in the same dtype.
TEST_P(Rules, HalfPrecisionIsAsGoodAsOneDeviceAttention) {
  const Mask mask = plan::parse_mask("causal", {.q = 300, .kv = 300});
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const Sequences x = random_sequences(
        {.heads = 2, .kv_heads = 2, .head_dim = 32, .value_dim = 32}, mask, dtype, 11);
    const Deal deal{.q_blocks = {run(0, 300)},
                    .k_blocks = {run(200, 300), run(0, 100), run(100, 200)},
                    .q_heads = {{0, 2}}};
    Results results = dealt_attention(kernel(), x, mask, deal, 0.2);
    for (at::Tensor* grad : {&results.dq_BSHD, &results.dk_BSGD, &results.dv_BSGE}) {
      *grad = grad->to(dtype);  // as the last copy of a plan does
    }
    const Results torch = torch_attention(x, mask, 0.2);
    const Results exact = naive_attention(x, mask, 0.2);
    const auto expect = [&](const char* name, at::Tensor Results::*field) {
      const double ours = relative_error(results.*field, exact.*field);
      const double theirs = relative_error(torch.*field, exact.*field);
      EXPECT_LE(ours, 2.5 * theirs) << name << ' ' << c10::toString(dtype);
    };
    expect("out", &Results::out_BSHE);
    expect("dq", &Results::dq_BSHD);
    expect("dk", &Results::dk_BSGD);
    expect("dv", &Results::dv_BSGE);
    EXPECT_LE(relative_error(results.lse_BSH, exact.lse_BSH), 1e-5) << c10::toString(dtype);
  }
}

// Rule 2 of the header.
TEST_P(Rules, RowsWithoutKeysAreZero) {
  const Mask mask(8, 8, {{.q = {0, 3}, .k = {0, 8}}, {.q = {5, 8}, .k = {2, 4}}});
  const Sequences x = random_sequences({}, mask, at::kFloat, 7);
  const Deal deal{.q_blocks = {run(0, 8)}, .k_blocks = {run(0, 8)}, .q_heads = {{0, 1}}};
  const Results y = dealt_attention(kernel(), x, mask, deal, 1);
  EXPECT_TRUE(at::equal(y.out_BSHE.slice(1, 3, 5), at::zeros({1, 2, 1, 8}))) << y.out_BSHE;
  EXPECT_TRUE(at::equal(y.lse_BSH.slice(1, 3, 5), at::full({1, 2, 1}, -kInf))) << y.lse_BSH;
  EXPECT_TRUE(at::equal(y.dq_BSHD.slice(1, 3, 5), at::zeros({1, 2, 1, 8}))) << y.dq_BSHD;
}

// Rule 3.
TEST_P(Rules, NanAndInfinityReachOnlyWhatSeesThem) {
  const Mask mask = mask_of_nonfinite_values();
  const Deal deal{.q_blocks = {run(0, 15)}, .k_blocks = {run(0, 15)}, .q_heads = {{0, 2}}};
  for (const at::ScalarType dtype : dtypes()) {
    for (const double scale : {1.0, 0.3}) {
      SCOPED_TRACE(fmt::format("{}, scale {}", c10::toString(dtype), scale));
      const Sequences finite = random_sequences({.heads = 2, .kv_heads = 1}, mask, dtype, 13);
      expect_nonfinite_values_stay(
          finite, naive_attention(finite, mask, scale),
          [&](const Sequences& x) { return dealt_attention(kernel(), x, mask, deal, scale); });
    }
  }
}

// Rule 4. Scores 1e4, 1e4 - 1 and -1e4 are exact in fp32; weights are 0.73, 0.27 and 0. An fp32
// log-sum-exp of 1e4 has an error of up to 2^-11, and so have weights computed from it, in merges
// and in the gradient.
TEST_P(Rules, LargeScoresDoNotOverflow) {
  const Mask mask = plan::full_mask({.q = 2, .kv = 3});
  for (const at::ScalarType dtype : dtypes()) {
    if (dtype == at::kBFloat16)
      continue;  // dq is a hundred times smaller than the terms that cancel in it
    const double of_lse = dtype == at::kDouble ? 1e-11 : 2e-3;
    Sequences x = random_sequences({.head_dim = 2}, mask, dtype, 17);
    x.q_BSHD = at::tensor({100, 1, -100, 1}, dtype).view({1, 2, 1, 2});
    x.k_BSGD = at::tensor({100, 0, 100, -1, -100, 0}, dtype).view({1, 3, 1, 2});
    const Results required = naive_attention(x, mask, 1);
    Deal deal{.q_blocks = {run(0, 2)}, .k_blocks = {run(0, 3)}, .q_heads = {{0, 1}}};
    const Results whole = dealt_attention(kernel(), x, mask, deal, 1);
    EXPECT_LE(relative_error(whole.out_BSHE, required.out_BSHE), tolerance(dtype));
    expect_near(whole, required, of_lse, "one block");
    deal.k_blocks = {run(2, 3), run(0, 1), run(1, 2)};
    expect_near(dealt_attention(kernel(), x, mask, deal, 1), required, of_lse, "three blocks");
  }
}

// Rule 5. Any work for 2^60 hidden pairs would not end, and memory of one number per row would be
// noticed. All rows of these tensors are the same row of memory.
TEST(Reference, PairsThatNoBandTouchesCostNothing) {
  constexpr std::int64_t kRows = std::int64_t{1} << 30;
  const Mask mask(
      2 * kRows, 2 * kRows,
      {{.q = {0, kRows}, .k = {0, kRows}}, {.q = {kRows, 2 * kRows}, .k = {kRows, 2 * kRows}}});
  const at::Tensor rows = at::full({1, 1, 1, 8}, kNan).expand({1, kRows, 1, 8});
  const at::Tensor row = at::zeros({1, 1, 1});
  Partial carry{at::zeros({1, 1, 1, 8}).expand({1, kRows, 1, 8}), row.expand({1, kRows, 1})};
  const Pairs pairs{
      .q_runs = run(0, kRows), .k_runs = run(kRows, 2 * kRows), .mask = &mask, .heads = {}};
  const Inputs inputs{rows, rows, rows, {.scale = 1}};
  reference().attend(pairs, inputs, carry);
  InputGrads grads{carry.out_BLHE, carry.out_BLHE, carry.out_BLHE};
  reference().attend_grad(pairs, inputs, {rows, carry.lse_BLH, carry.lse_BLH}, grads);
  EXPECT_TRUE(at::equal(row, at::zeros({1, 1, 1}))) << row;
  EXPECT_TRUE(at::equal(carry.out_BLHE.select(1, 0), at::zeros({1, 1, 8})))
      << carry.out_BLHE.select(1, 0);
}

// Rule 6.
TEST_P(Rules, SameCallGivesTheSameBits) {
  const Mask mask = plan::parse_mask("causal", {.q = 700, .kv = 700});
  const Sequences x = random_sequences({.heads = 2, .kv_heads = 1}, mask, at::kFloat, 19);
  const Deal deal{.q_blocks = {run(0, 700)}, .k_blocks = {run(0, 700)}, .q_heads = {{0, 2}}};
  for_each_result(dealt_attention(kernel(), x, mask, deal, 1),
                  dealt_attention(kernel(), x, mask, deal, 1),
                  [](const char* name, const at::Tensor& a, const at::Tensor& b) {
                    EXPECT_TRUE(at::equal(a, b)) << name;
                  });
}

TEST_P(Rules, RecordsNoAutograd) {
  const Mask mask = plan::full_mask({.q = 2, .kv = 2});
  const Sequences x = random_sequences({}, mask, at::kFloat, 23);
  const Inputs inputs{x.q_BSHD.clone().requires_grad_(), x.k_BSGD, x.v_BSGE, {}};
  Partial carry{at::zeros({1, 2, 1, 8}), at::zeros({1, 2, 1})};
  clear(carry);
  kernel().attend({.q_runs = run(0, 2), .k_runs = run(0, 2), .mask = &mask, .heads = {}}, inputs,
                  carry);
  EXPECT_FALSE(carry.out_BLHE.requires_grad());
}

}  // namespace
}  // namespace armillary::kernel
