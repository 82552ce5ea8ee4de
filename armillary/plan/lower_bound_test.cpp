#include "armillary/plan/lower_bound.h"

#include <gtest/gtest.h>

namespace armillary::plan {
namespace {

/// In words per token, as closed forms give them.
double words_per_token(int world, int heads, int kv_heads) {
  constexpr std::int64_t kTokens = 65536;
  const Problem problem{.world = world,
                        .heads = heads,
                        .kv_heads = kv_heads,
                        .head_dim = 128,
                        .value_dim = 128,
                        .dtype = Dtype::Bf16,
                        .mask = full_mask({kTokens, kTokens})};
  return forward_lower_bound(problem) / 2 / kTokens;
}

TEST(LowerBound, IsThatOfTheClosedForms) {
  EXPECT_NEAR(words_per_token(8, 32, 32), 1664, 0.01);
  EXPECT_NEAR(words_per_token(16, 32, 32), 929.065, 0.01);
  EXPECT_NEAR(words_per_token(64, 32, 32), 351.288, 0.01);
  EXPECT_NEAR(words_per_token(8, 32, 8), 1008, 0.01);
  EXPECT_NEAR(words_per_token(16, 32, 8), 660, 0.01);
  EXPECT_NEAR(words_per_token(64, 32, 8), 339.555, 0.01);
  EXPECT_NEAR(words_per_token(16, 8, 1), 218, 0.5);
}

TEST(LowerBound, OfFewRanksIsARing) {
  EXPECT_EQ(words_per_token(1, 32, 8), 0);
  EXPECT_NEAR(words_per_token(2, 32, 1), 2 * 128 * 0.5, 1e-9);
}

}  // namespace
}  // namespace armillary::plan
