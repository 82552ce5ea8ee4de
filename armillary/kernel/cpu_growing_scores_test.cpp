// Scores that grow along the keys, in calls that are not asked for the largest: kernels may weigh
// keys with a maximum that is not theirs, and must notice where they may not.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "armillary/kernel/dealt_attention.h"

namespace armillary::kernel {
namespace {

using plan::Mask;

constexpr std::int64_t kTokens = 620;

class CpuGrowingScores : public KernelTest {};

INSTANTIATE_TEST_SUITE_P(Isas, CpuGrowingScores, testing::ValuesIn(isa_names()),
                         [](const auto& test) { return test.param; });

/// What is added to the score of each key: a slope up or down, steps of 6 at keys that are
/// in no order, or one key far above all others.
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
    Deal at_once{.q_blocks = {run(0, kTokens)},
                 .k_blocks = {run(0, kTokens)},
                 .q_heads = {{0, 1}},
                 .max_logit = false};
    Deal striped = at_once;  // masks over stripes of keys hide some between others
    striped.k_blocks = {stripe(1, 3, kTokens), stripe(0, 3, kTokens), stripe(2, 3, kTokens)};
    for (const std::string shape : {"up", "down", "steps", "one"}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const Sequences x = sequences_of(shape, mask, dtype);
        Sequences exact = x;
        for (at::Tensor* t : {&exact.q_BSHD, &exact.k_BSGD, &exact.v_BSGE, &exact.dout_BSHE}) {
          *t = t->to(at::kDouble);
        }
        const Results required = dealt_attention(reference(), exact, mask, at_once, 0.125);
        for (const Deal& deal : {at_once, striped}) {
          const std::string where = fmt::format("{}, {}, {}, {} blocks", text, shape,
                                                c10::toString(dtype), deal.k_blocks.size());
          const Results given = dealt_attention(kernel(), x, mask, deal, 0.125);
          // dQ and dK are what is left of terms that cancel, and tell little.
          EXPECT_LE(relative_error(given.out_BSHE, required.out_BSHE), tolerance(dtype)) << where;
          EXPECT_LE(relative_error(given.lse_BSH, required.lse_BSH), 1e-5) << where;
          EXPECT_LE(relative_error(given.dv_BSGE, required.dv_BSGE), tolerance(dtype)) << where;
        }
      }
    }
  }
}

}  // namespace
}  // namespace armillary::kernel
