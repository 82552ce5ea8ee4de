// verify_test.cpp: properties of verify for any plan. Broken plans, rule by rule, are in
// verify/*_test.cpp; that the plans of all strategies pass is in strategies/grid_test.cpp.
#include "armillary/plan/verify/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/plan/testing/broken_plan.h"
#include "tests/sanitized.h"

namespace armillary::plan {
namespace {

/// A pair of blocks that see nothing of each other counts as nothing, attended to or not.
TEST(Verify, InvisiblePairsCountAsNothing) {
  Problem problem = small_problem(2);
  problem.mask = documents_mask({8, 8}, {4, 4}, Full{});
  Plan plan = ring_forward();
  plan.problem = problem;
  EXPECT_EQ(verify(plan), std::vector<Diagnostic>{});
  repeat(plan, 0, 7);
  drop(plan, 1, 7);
  EXPECT_EQ(verify(plan), std::vector<Diagnostic>{});
}

/// A plan of so many ops runs on symbols on several threads, and in order if it is wrong.
TEST(Verify, OfALargePlanFindsTheSameOnAnyNumberOfThreads) {
  if (sanitizer_samples()) GTEST_SKIP() << "[SKIP] a minute under a sanitizer";
  constexpr int kWorld = 256;
  const Problem problem{.world = kWorld,
                        .heads = 2,
                        .kv_heads = 2,
                        .mask = causal_mask({512, 512}, Align::Start),
                        .layout = parse_layout("zigzag")};
  Plan plan = make_plan(problem, parse_strategy("ring"), Pass::Backward);
  EXPECT_EQ(verify(plan), std::vector<Diagnostic>{});
  std::vector<Op>& ops = plan.ranks[100].ops;
  const auto dropped = std::find_if(ops.begin(), ops.end(),
                                    [](const Op& op) { return attends_grad(op) && op.step == 77; });
  ops.erase(dropped);
  const std::vector<Diagnostic> diagnostics = verify(plan, 2);
  ASSERT_FALSE(diagnostics.empty());
  EXPECT_EQ(diagnostics[0].rule, "complete");
  EXPECT_EQ(verify(plan, 2), diagnostics);
}

TEST(Verify, ReportsAtMostTheLimit) {
  Plan plan = ring_forward();
  for (const Rank rank : {0, 1}) {
    for (Op& op : ops(plan, rank)) {
      if (op.is_comm()) op.peer = rank;
    }
  }
  EXPECT_EQ(verify(plan).size(), 8u) << "4 messages of each rank";
  EXPECT_EQ(verify(plan, 3).size(), 3u);
  EXPECT_EQ(verify(plan, 1).size(), 1u);
  EXPECT_THROW(verify(plan, 0), InternalError) << "0 would say that the plan is exact";
}

TEST(Verify, TheProblemItselfMustBeLegal) {
  Plan plan = ring_forward();
  plan.problem.kv_heads = 0;
  EXPECT_THAT([&] { verify(plan); }, testing::ThrowsMessage<InvalidArgument>(
                                         "problem: kv_heads 0 given; at least 1 is required"));
}

TEST(VerifySaved, BackwardFindsWhatForwardSaves) {
  const Plan forward = ring_forward();
  Plan backward = ring_backward();
  EXPECT_EQ(verify_saved(forward, backward), std::vector<Diagnostic>{});
  tile(backward, 1, 4).heads = {0, 2};
  EXPECT_EQ(verify_saved(forward, backward),
            (std::vector<Diagnostic>{{1, -1, "blocks",
                                      "forward saves lse{1} heads 0-4 but backward finds lse{1} "
                                      "heads 0-2"}}));
  backward = ring_backward();
  tile(backward, 1, 1).blocks = {0};
  EXPECT_EQ(verify_saved(forward, backward),
            (std::vector<Diagnostic>{{1, -1, "blocks",
                                      "forward saves k{1} heads 0-2 but backward finds k{0} "
                                      "heads 0-2"}}));
}

TEST(VerifySaved, InTheSameOrder) {
  const Plan forward = ring_forward();
  Plan backward = ring_backward();
  std::swap(backward.ranks[0].saved[0], backward.ranks[0].saved[1]);
  EXPECT_EQ(verify(backward), std::vector<Diagnostic>{}) << "right on its own";
  const std::vector<Diagnostic> diagnostics = verify_saved(forward, backward);
  ASSERT_EQ(diagnostics.size(), 2u);
  EXPECT_EQ(diagnostics[0].text, "forward saves q{0} heads 0-4 but backward finds k{0} heads 0-2");
}

TEST(VerifySaved, OfTheSameProblem) {
  const Plan forward = ring_forward();
  Plan backward = ring_backward();
  backward.problem.head_dim = 4;
  EXPECT_EQ(verify_saved(forward, backward),
            (std::vector<Diagnostic>{
                {-1, -1, "blocks", "forward and backward solve different problems"}}));
}

/// Equal ids are different tokens if the problem is cut into other blocks.
TEST(VerifySaved, OfTheSameBlocks) {
  const Plan forward = ring_forward();
  Plan backward = ring_backward();
  backward.blocks.kv[1].runs = {run_of({4, 6}), run_of({6, 8})};
  EXPECT_EQ(verify_saved(forward, backward),
            (std::vector<Diagnostic>{
                {-1, -1, "blocks", "forward and backward solve different problems"}}));
}

/// The verdicts as letters: exact, given what forward saves, or wrong.
std::string letters(const std::vector<Plan>& plans) {
  std::string text;
  for (const auto& [diagnostics, assumes_forward] : verify_together(plans)) {
    text += !diagnostics.empty() ? 'w' : assumes_forward ? 'g' : 'e';
  }
  return text;
}

TEST(VerifyTogether, EachPassFindsWhatTheFirstLeaves) {
  const std::vector<Plan> plans = make_plans(small_problem(2), {.name = "ulysses"},
                                             {Pass::Forward, Pass::Replay, Pass::Backward});
  const Plan& forward = plans[0];
  const Plan& replay = plans[1];
  const Plan& backward = plans[2];
  EXPECT_EQ(letters(plans), "eee");
  EXPECT_EQ(letters({backward, replay}), "gg");
  Plan other = replay;
  std::swap(other.ranks[1].saved[0], other.ranks[1].saved[1]);
  EXPECT_EQ(letters({other}), "g") << "right on its own";
  EXPECT_EQ(letters({other, backward}), "gw");
  EXPECT_EQ(letters({backward, other}), "wg");
  EXPECT_EQ(letters({other, forward, backward}), "wee") << "forward says what is saved";
  EXPECT_EQ(letters({forward, backward, other}), "eew");
  Plan wrong = forward;
  ops(wrong, 0).pop_back();
  EXPECT_EQ(letters({wrong, other, backward}), "wew") << "beside a wrong forward, by the replay";
  Plan elsewhere = other;
  elsewhere.strategy = "another";
  EXPECT_EQ(letters({forward, elsewhere}), "eg") << "they do not run together";
}

}  // namespace
}  // namespace armillary::plan
