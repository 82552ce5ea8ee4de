// attention_memory_test.cpp: the bytes of a problem are those that a simulation of it needs; bytes
// that strategies keep, by hand.
#include "armillary/predict/cost/attention_memory.h"

#include <gtest/gtest.h>

#include "armillary/predict/sim/engine.h"

namespace armillary::cost {
namespace {

TEST(Engine, TellsWhatIsTooLargeBeforeTheFirstEvent) {
  const plan::Problem problem{.world = 4,
                              .heads = 8,
                              .kv_heads = 4,
                              .head_dim = 128,
                              .value_dim = 128,
                              .dtype = plan::Dtype::Bf16,
                              .mask = plan::parse_mask("causal", {1000, 1000})};
  for (const char* const strategy : {"ring", "ulysses", "tokenring"}) {
    const plan::Planner planner(problem, plan::parse_strategy(strategy));
    for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
      sim::Cluster cluster = sim::load_cluster("c8");
      const auto is_told = [&](double bytes) {
        cluster.device.memory_bytes = bytes;
        bool told = false;
        simulate(planner, pass, cluster, {.on_too_large = [&] { told = true; }});
        return told;
      };
      const auto need = static_cast<double>(memory_need(planner, {pass}).bytes);
      EXPECT_FALSE(is_told(need)) << strategy;
      EXPECT_TRUE(is_told(need - 1)) << strategy;
    }
  }
}

/// 4 ranks with 250 tokens each; heads of 128 elements.
plan::Problem thousand_tokens(int heads, int kv_heads) {
  return {.world = 4,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = 128,
          .value_dim = 128,
          .dtype = plan::Dtype::Bf16,
          .mask = plan::parse_mask("causal", {1000, 1000})};
}

/// The most that a rank keeps.
KeptBytes most_kept(const plan::Problem& problem, const char* strategy) {
  const plan::Planner planner(problem, plan::parse_strategy(strategy));
  KeptBytes most;
  for (plan::Rank rank = 0; rank < problem.world; ++rank) {
    most.grow(kept_by_attention(planner, rank));
  }
  return most;
}

constexpr std::int64_t kHead = 256;  // Bytes of one of a token.
constexpr std::int64_t kLse = 4;

// They save tensors of the caller, or keys of another rank in place of them, and no copy.
TEST(KeptByAttention, IsTheCallersTensorsWhereHeadsStay) {
  for (const char* const strategy :
       {"ring", "ring:backward=q", "allgather", "double_ring:window=2", "bidirectional_ring",
        "tokenring", "attention2d:rows=2", "attention2d:rows=2,overlap=true", "startrail:c=2",
        "grid:u=1,rq=2,rk=2"}) {
    const KeptBytes kept_bytes = most_kept(thousand_tokens(8, 4), strategy);
    EXPECT_EQ(kept_bytes.caller, 250 * (16 * kHead + 8 * kHead + 8 * kLse)) << strategy;
    EXPECT_EQ(kept_bytes.caller_output, 2000 * (kHead + kLse)) << strategy;
    EXPECT_EQ(kept_bytes.layer, kept_bytes.caller) << strategy;
    EXPECT_EQ(kept_bytes.output, kept_bytes.caller_output) << strategy;
    const AttentionBytes bytes = attention_bytes(5, kept_bytes);
    EXPECT_EQ(bytes.slots, 5) << strategy;
    for (const auto policy : {Recompute::None, Recompute::Full, Recompute::AttentionOutput}) {
      EXPECT_EQ(bytes.kept_bytes(policy), 0) << strategy;
    }
  }
}

// Out by heads for backward, and by tokens for the product behind attention. A recomputed layer
// keeps it once.
TEST(KeptByAttention, HasOutTwiceWhereHeadsAreTraded) {
  for (const char* const strategy :
       {"ulysses", "ulysses:qkv=packed", "usp:u=2", "usp:u=4", "grid:u=2,rq=1,rk=2"}) {
    const AttentionBytes bytes = attention_bytes(0, most_kept(thousand_tokens(8, 4), strategy));
    EXPECT_EQ(bytes.kept_bytes(Recompute::None), 2000 * kHead) << strategy;
    EXPECT_EQ(bytes.kept_bytes(Recompute::AttentionOutput), 0) << strategy;
    EXPECT_EQ(bytes.kept_bytes(Recompute::Full), 0) << strategy;
  }
}

// 4 ranks read 2 KV heads: each has one of all 1000 tokens in place of two of 250.
TEST(KeptByAttention, HasKvHeadsOnceForEachGroupThatReadsThem) {
  const AttentionBytes bytes = attention_bytes(0, most_kept(thousand_tokens(8, 2), "ulysses"));
  EXPECT_EQ(bytes.kept_bytes(Recompute::None), 2000 * kHead + 1000 * kHead);
  EXPECT_EQ(bytes.kept_bytes(Recompute::AttentionOutput), 0);
}

// 6 heads over 4 ranks: two of them have 2 of all tokens, where 1.5 would be even.
TEST(KeptByAttention, IsThatOfTheRankWithMostHeads) {
  const AttentionBytes bytes = attention_bytes(0, most_kept(thousand_tokens(6, 6), "ulysses"));
  const std::int64_t even = 1500;
  EXPECT_EQ(bytes.kept_bytes(Recompute::AttentionOutput), (2000 - even) * (kHead + kLse));
  EXPECT_EQ(bytes.kept_bytes(Recompute::None), even * kHead + (2000 - even) * (4 * kHead + kLse));
}

}  // namespace
}  // namespace armillary::cost
