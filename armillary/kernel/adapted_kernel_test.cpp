// adapted_kernel_test.cpp: kernels with few abilities, made to do what the executor asks for. A
// made-up kernel has any combination of abilities; results are compared with one softmax, and
// native calls and roundings are counted.
#include "armillary/kernel/adapted_kernel.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "armillary/kernel/testing/dealt_attention.h"
#include "armillary/kernel/testing/limited_attention.h"
#include "tests/random_runs.h"
#include "tests/seed.h"

namespace armillary::kernel {
namespace {

/// All combinations of the abilities that change how pairs are cut.
std::vector<Abilities> cutting_abilities() {
  std::vector<Abilities> all;
  all.reserve(8);
  for (int set = 0; set < 8; ++set) {
    all.push_back({.causal = (set & 1) != 0, .window = (set & 2) != 0, .varlen = (set & 4) != 0});
  }
  return all;
}

std::int64_t row_at(const NativeRows& rows, std::int64_t i) {
  return rows.first + i * rows.step;
}

bool sees(const NativeCall& call, std::int64_t i, std::int64_t j) {
  const std::int64_t distance = (j - call.k.count) - (i - call.q.count);
  if (call.mask == NativeMask::Full) return true;
  return distance <= 0 && (call.mask == NativeMask::Causal || distance > -call.window);
}

/// Number of calls that see each pair of rows, by query row, then key row.
std::vector<int> times_seen(const std::vector<std::vector<NativeCall>>& calls, std::int64_t q_rows,
                            std::int64_t k_rows) {
  std::vector<int> marks(static_cast<std::size_t>(q_rows * k_rows), 0);
  for (const std::vector<NativeCall>& together : calls) {
    for (const NativeCall& call : together) {
      for (std::int64_t i = 0; i < call.q.count; ++i) {
        for (std::int64_t j = 0; j < call.k.count; ++j) {
          if (!sees(call, i, j)) continue;
          ++marks[static_cast<std::size_t>(row_at(call.q, i) * k_rows + row_at(call.k, j))];
        }
      }
    }
  }
  return marks;
}

void expect_each_pair_once(const Pairs& pairs, const Abilities& can, const std::string& what) {
  const auto calls = native_calls(pairs, can);
  for (const std::vector<NativeCall>& together : calls) {
    EXPECT_TRUE(can.varlen || together.size() == 1) << what;
    for (const NativeCall& call : together) {
      EXPECT_TRUE(call.mask != NativeMask::Causal || can.causal) << what;
      EXPECT_TRUE(call.mask != NativeMask::Window || can.window) << what;
    }
  }
  const std::vector<std::int64_t> q = positions(pairs.q_runs);
  const std::vector<std::int64_t> k = positions(pairs.k_runs);
  std::vector<int> required;
  for (const std::int64_t at : q) {
    for (const std::int64_t key : k) required.push_back(pairs.mask->visible(at, key) ? 1 : 0);
  }
  EXPECT_EQ(
      times_seen(calls, static_cast<std::int64_t>(q.size()), static_cast<std::int64_t>(k.size())),
      required)
      << what;
}

const std::vector<std::string>& masks() {
  static const std::vector<std::string> texts = {
      "full",
      "causal:align=start",
      "causal:align=end",
      "window:left=5,right=0",
      "window:left=3,right=7",
      "window:left=0,right=0",
      "prefix:17",
      "block_causal:8",
      "documents:20,0,13,67,within=causal",
      "documents:20,0,13,67,within=window,left=6,right=1",
      "bands:0-50/0-50/-2..1;50-100/50-100/.."};
  return texts;
}

RC_GTEST_PROP(NativeCalls, HaveEachVisiblePairOnce, ()) {
  const plan::Runs q = plan::random_runs();
  const plan::Runs k = plan::random_runs();
  const std::string text = *rc::gen::elementOf(masks());
  const plan::Mask mask = plan::parse_mask(text, {100, 100});
  for (const Abilities& can : cutting_abilities()) {
    expect_each_pair_once({.q_runs = q, .k_runs = k, .mask = &mask}, can, text);
    RC_ASSERT(!testing::Test::HasFailure());
  }
}

// A ring step under a causal mask is few calls for a library that has causal masks.
TEST(NativeCalls, OfACausalMaskAreFewWhereItIsTakenNatively) {
  const plan::Mask mask = plan::parse_mask("causal", {64, 64});
  const auto count = [&](const plan::Runs& q, const plan::Runs& k, const Abilities& can) {
    return native_calls({.q_runs = q, .k_runs = k, .mask = &mask}, can).size();
  };
  const plan::Runs early = run(0, 32);
  const plan::Runs late = run(32, 64);
  const plan::Runs zigzag = {plan::run_of({0, 16}), plan::run_of({48, 64})};
  EXPECT_EQ(count(early, early, {.causal = true}), 1U);
  EXPECT_EQ(count(late, early, {.causal = true}), 1U);
  EXPECT_EQ(count(early, late, {.causal = true}), 0U);
  EXPECT_EQ(count(zigzag, zigzag, {.causal = true}), 3U);
  EXPECT_EQ(count(zigzag, zigzag, {.causal = true, .varlen = true}), 3U);
  EXPECT_EQ(count(stripe(0, 4, 64), stripe(1, 4, 64), {.causal = true}), 1U);
}

// No distance between two stripes lies in the band, so no pair is visible.
TEST(NativeCalls, OfStripesThatAWindowMissesAreNone) {
  const plan::Mask mask = plan::parse_mask("window:left=0,right=0", {64, 64});
  const Pairs pairs{.q_runs = stripe(0, 4, 64), .k_runs = stripe(1, 4, 64), .mask = &mask};
  for (const Abilities& can : cutting_abilities()) EXPECT_EQ(native_calls(pairs, can).size(), 0U);
}

TEST(NativeCalls, OfDocumentsAreGivenTogetherWithVarlen) {
  const plan::Mask mask = plan::parse_mask("documents:16,16,32", {64, 64});
  const Pairs pairs{.q_runs = run(0, 64), .k_runs = run(0, 64), .mask = &mask};
  EXPECT_EQ(native_calls(pairs, {.causal = true}).size(), 3U);
  const auto together = native_calls(pairs, {.causal = true, .varlen = true});
  ASSERT_EQ(together.size(), 1U);
  EXPECT_EQ(together[0].size(), 3U);
}

std::vector<Abilities> all_abilities() {
  std::vector<Abilities> all;
  for (const Abilities& cutting : cutting_abilities()) {
    for (int set = 0; set < 8; ++set) {
      Abilities can = cutting;
      can.carries = (set & 1) != 0;
      can.adds_gradients = (set & 2) != 0;
      can.takes_delta = (set & 4) != 0;
      all.push_back(can);
    }
  }
  return all;
}

TEST(AdaptedKernel, EqualsOneSoftmaxWithAnyAbilities) {
  constexpr std::int64_t kLength = 29;
  const std::vector<std::string> masks{"full", "causal", "window:left=5,right=2",
                                       "documents:11,0,6,12"};
  std::uint64_t seed = 0;
  const auto expect_equal = [&](const AdaptedKernel& kernel, const std::string& text) {
    const plan::Mask mask = plan::parse_mask(text, {kLength, kLength});
    const HeadCase& heads = head_cases()[++seed % head_cases().size()];
    const Sequences x = sequences_of(heads, mask, at::kDouble, seed);
    Deal deal = deals(kLength)[seed % deals(kLength).size()];
    deal.q_heads = heads.ranges;
    deal.max_logit = false;
    Results required = naive_attention(x, mask, 0.4);
    const Results results = dealt_attention(kernel, x, mask, deal, 0.4);
    required.dsinks_H = results.dsinks_H;
    required.max_logit_H = results.max_logit_H;
    expect_near(results, required, 1e-12, fmt::format("{} seed {}", text, seed));
  };
  const std::vector<Abilities> all = all_abilities();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const LimitedAttention native(all[i]);
    const AdaptedKernel kernel(native);
    // One mask for each set of abilities, or all masks if nothing is sampled.
    for (std::size_t m = 0; m < masks.size(); ++m) {
      if (test_all() || m == (i + i / masks.size()) % masks.size()) expect_equal(kernel, masks[m]);
    }
  }
}

// A library that rounds: partials and gradients in bf16 lose the accuracy of one rounding per call,
// and no more.
TEST(AdaptedKernel, RoundsOnceACall) {
  constexpr std::int64_t kLength = 64;
  const LimitedAttention native({.rounds = true, .causal = true});
  const AdaptedKernel kernel(native);
  const plan::Mask mask = plan::parse_mask("causal", {kLength, kLength});
  const Sequences x = random_sequences({.heads = 2, .kv_heads = 1}, mask, at::kBFloat16, 5);
  const Deal deal{.q_blocks = {run(0, kLength)},
                  .k_blocks = {run(0, 16), run(16, 32), run(32, 48), run(48, 64)},
                  .q_heads = {{0, 2}},
                  .max_logit = false};
  Results required = naive_attention(x, mask, 0.4);
  const Results results = dealt_attention(kernel, x, mask, deal, 0.4);
  required.dsinks_H = results.dsinks_H;
  required.max_logit_H = results.max_logit_H;
  expect_near(results, required, 0x1p-6, "bf16");
  EXPECT_GT(relative_error(results.dk_BSGD, required.dk_BSGD), 0x1p-12);
}

// If the library merges and adds itself, its results stay in the accumulator dtype. This also holds
// for a window that is cut into triangles and read backwards.
TEST(AdaptedKernel, RoundsNothingThatIsMergedOrAdded) {
  constexpr std::int64_t kLength = 64;
  const plan::Mask mask = plan::parse_mask("window:left=9,right=2", {kLength, kLength});
  const Sequences x = random_sequences({.heads = 2, .kv_heads = 1}, mask, at::kBFloat16, 5);
  const Deal deal{.q_blocks = {run(0, kLength)},
                  .k_blocks = {run(0, 32), run(32, 64)},
                  .q_heads = {{0, 2}},
                  .max_logit = false};
  const LimitedAttention native(
      {.carries = true, .adds_gradients = true, .rounds = true, .causal = true});
  const Results results = dealt_attention(AdaptedKernel(native), x, mask, deal, 0.4);
  const LimitedAttention exact({.carries = true, .adds_gradients = true, .causal = true});
  const Results required = dealt_attention(AdaptedKernel(exact), x, mask, deal, 0.4);
  expect_near(results, required, 0, "the stand-in of Out apart, nothing is rounded");
}

}  // namespace
}  // namespace armillary::kernel
