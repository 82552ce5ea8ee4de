// Scores that grow along the keys, in calls that do not ask for the largest score. Kernels may then
// weigh keys relative to an earlier maximum, and must notice when that is not accurate.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "armillary/kernel/testing/dealt_attention.h"
#include "tests/sanitized.h"

namespace armillary::kernel {
namespace {

using plan::Mask;

constexpr std::int64_t kTokens = 620;

class CpuGrowingScores : public KernelTest {
 protected:
  void SetUp() override {
    KernelTest::SetUp();
    if (sanitizer_samples() && is_emulated()) GTEST_SKIP() << "[SKIP] the paths of Kernels/Rules";
  }
};

INSTANTIATE_TEST_SUITE_P(Isas, CpuGrowingScores, testing::ValuesIn(isa_names()),
                         [](const auto& test) { return test.param; });

/// One call over everything, which does not ask for the largest scores.
Deal unasked(const Mask& mask, std::int64_t heads) {
  return {.q_blocks = {run(0, mask.q_len())},
          .k_blocks = {run(0, mask.kv_len())},
          .q_heads = {{0, heads}},
          .max_logit = false};
}

/// Amount added to the score of each key: a slope up or down, steps of 6 at irregular keys, or one
/// key far above all others.
at::Tensor added_scores(const std::string& shape) {
  const at::Tensor key = at::arange(kTokens).to(at::kDouble);
  if (shape == "up") return key / 25;
  if (shape == "down") return (kTokens - key) / 25;
  if (shape == "steps") return (key / 133).floor() * 6 * (key * 37).remainder(5).eq(0);
  return 25 * key.eq(577);
}

Sequences sequences_of(const std::string& shape, const Mask& mask, at::ScalarType dtype) {
  Sequences x = random_sequences({.heads = 1, .kv_heads = 1, .head_dim = 40, .value_dim = 72}, mask,
                                 dtype, 5);
  x.q_BSHD.select(3, 0).fill_(4);
  x.k_BSGD.select(3, 0).copy_((added_scores(shape) / 4 / 0.125).view({1, -1, 1}));
  return x;
}

TEST_P(CpuGrowingScores, EqualTheReferenceInFp64) {
  for (const std::string text :
       {"full", "causal", "window:left=310,right=20", "documents:95,225,300", "block_causal:70"}) {
    const Mask mask = plan::parse_mask(text, {.q = kTokens, .kv = kTokens});
    const Deal at_once = unasked(mask, 1);
    Deal striped = at_once;  // in a stripe of keys, hidden keys lie between visible ones
    striped.k_blocks = {stripe(1, 3, kTokens), stripe(0, 3, kTokens), stripe(2, 3, kTokens)};
    for (const std::string shape : {"steps", "up", "down", "one"}) {
      // Steps rise within a block and between blocks; other shapes do one or the other.
      if (samples(is_emulated()) && shape != "steps") continue;
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const Sequences x = sequences_of(shape, mask, dtype);
        const Results required = shared_results(text + shape + c10::toString(dtype), [&] {
          return dealt_attention(reference(), to_double(x), mask, at_once, 0.125);
        });
        for (const Deal& deal : {at_once, striped}) {
          const std::string where = fmt::format("{}, {}, {}, {} blocks", text, shape,
                                                c10::toString(dtype), deal.k_blocks.size());
          const Results results = dealt_attention(kernel(), x, mask, deal, 0.125);
          // dQ and dK are differences of nearly equal terms, so their errors tell little.
          EXPECT_LE(relative_error(results.out_BSHE, required.out_BSHE), tolerance(dtype)) << where;
          EXPECT_LE(relative_error(results.lse_BSH, required.lse_BSH), 1e-5) << where;
          EXPECT_LE(relative_error(results.dv_BSGE, required.dv_BSGE), tolerance(dtype)) << where;
        }
      }
    }
  }
}

TEST_P(CpuGrowingScores, RandomScores) {
  if (sanitizer_samples()) GTEST_SKIP() << "[SKIP] about rounding, not about memory";
  for (const std::string text : {"full", "causal", "window:left=300,right=0"}) {
    const Mask mask = plan::parse_mask(text, {.q = 1300, .kv = 1300});
    const Sequences x = random_sequences(
        {.heads = 2, .kv_heads = 2, .head_dim = 40, .value_dim = 40}, mask, at::kBFloat16, 3);
    const Results exact = shared_results(text, [&] {
      return dealt_attention(reference(), to_double(x), mask, unasked(mask, 2), 0.5);
    });
    const Results results = dealt_attention(kernel(), x, mask, unasked(mask, 2), 0.5);
    EXPECT_LE(relative_error(results.out_BSHE, exact.out_BSHE), 0x1p-7) << text;
    EXPECT_LE(relative_error(results.lse_BSH, exact.lse_BSH), 1e-5) << text;
  }
}

// No block of keys doubles the sum of the weights before it, but together they grow it by 2^250.
TEST_P(CpuGrowingScores, SlowGrowth) {
  const Mask mask = plan::full_mask({.q = 1, .kv = 16384});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Sequences x = random_sequences({.heads = 1, .kv_heads = 1, .head_dim = 16, .value_dim = 16},
                                   mask, dtype, 5);
    // Score 0.0105 (128 a + b) of key 128 a + b, from keys that are exact in bf16.
    x.q_BSHD.zero_().select(3, 0).fill_(128 * 0.0105);
    x.q_BSHD.select(3, 1).fill_(0.0105);
    x.v_BSGE.fill_(3);  // outputs overflow before sums do
    const at::Tensor key = at::arange(16384).view({1, -1, 1});
    x.k_BSGD.select(3, 0).copy_(key.floor_divide(128));
    x.k_BSGD.select(3, 1).copy_(key.remainder(128));
    const Results results = dealt_attention(kernel(), x, mask, unasked(mask, 1), 1);
    const Results exact = dealt_attention(reference(), to_double(x), mask, unasked(mask, 1), 1);
    EXPECT_LE(relative_error(results.out_BSHE, exact.out_BSHE),
              dtype == at::kFloat ? 1e-5 : 0x1p-7);
    EXPECT_LE(relative_error(results.lse_BSH, exact.lse_BSH), 1e-5);
  }
}

}  // namespace
}  // namespace armillary::kernel
