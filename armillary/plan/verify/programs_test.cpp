// programs_test.cpp: proofs rank by rank hold exactly for plans that the graph of waits and the run
// in its order find nothing wrong with.
#include "armillary/plan/verify/programs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "armillary/plan/mutate.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/program/check.h"
#include "armillary/plan/testing/broken_plan.h"
#include "armillary/plan/testing/every_strategy.h"
#include "armillary/plan/verify/symbols.h"

namespace armillary::plan::verifier {
namespace {

/// The verdicts on a plan that passes the rules before `order`.
struct Verdicts {
  bool steps = false;     ///< waits_follow_steps
  bool programs = false;  ///< holds_on_symbols
  bool ordered = false;   ///< order_actions
  bool exact = false;     ///< run_symbols
};

Verdicts verdicts(const Plan& plan) {
  Diagnostics diagnostics(1);
  const Measures measures = measures_of(plan.problem, plan.blocks);
  const World world{measures, plan.ranks};
  const std::vector<MatchedMessage> messages = match_messages(world, diagnostics);
  EXPECT_TRUE(diagnostics.empty());
  Verdicts verdict{.steps = waits_follow_steps(world, messages),
                   .programs = holds_on_symbols(plan, messages)};
  const std::vector<Action> actions = order_actions(world, messages, diagnostics);
  verdict.ordered = diagnostics.empty();
  if (verdict.ordered) run_symbols(plan, actions, diagnostics);
  verdict.exact = diagnostics.empty();
  return verdict;
}

/// True if the plan passes the rules before `order`.
bool is_well_formed(const Plan& plan) {
  Diagnostics diagnostics(1);
  const Measures measures = measures_of(plan.problem, plan.blocks);
  const World world{measures, plan.ranks};
  check_well_formed(plan, measures, diagnostics);
  if (diagnostics.empty()) check_externals(plan, diagnostics);
  if (diagnostics.empty()) check_zero_copy(world, diagnostics);
  if (diagnostics.empty()) match_messages(world, diagnostics);
  return diagnostics.empty();
}

TEST(VerifyPrograms, EveryStrategyIsProvedRankByRank) {
  const Problem problem{.world = 8,
                        .heads = 8,
                        .kv_heads = 4,
                        .mask = parse_mask("causal", {256, 256}),
                        .layout = parse_layout("zigzag")};
  for (const std::string& name : every_strategy(problem)) {
    for (const Pass pass : {Pass::Forward, Pass::Backward, Pass::Replay}) {
      const Plan plan = lower(make_plan(problem, parse_strategy(name), pass));
      const Verdicts verdict = verdicts(plan);
      EXPECT_TRUE(verdict.steps && verdict.programs) << name << ' ' << to_string(pass);
    }
  }
}

/// A receive that stands before the send of its batch holds up its rank, but not the machine.
TEST(VerifyPrograms, APlanThatRunsInAnotherOrderOnlyIsStillExact) {
  Plan plan = ring_forward();
  for (const Rank rank : {0, 1}) std::swap(ops(plan, rank)[0], ops(plan, rank)[1]);
  const Verdicts verdict = verdicts(plan);
  EXPECT_TRUE(verdict.steps && verdict.exact);
  EXPECT_FALSE(verdict.programs);
  EXPECT_TRUE(verify(plan).empty());
}

TEST(VerifyPrograms, VerdictsOnMutantsAreThoseOfTheRunInOrder) {
  int proved = 0;
  int refused = 0;
  for (const std::string name : {"ring", "usp:u=2", "tokenring", "attention2d:rows=2"}) {
    for (const Pass pass : {Pass::Forward, Pass::Backward}) {
      const Plan plan = make_plan(small_problem(4), parse_strategy(name), pass);
      for (const Mutation& mutation : mutations(plan)) {
        Plan mutant = plan;
        mutate(mutant, mutation);
        if (!is_well_formed(mutant)) continue;
        const Verdicts verdict = verdicts(mutant);
        EXPECT_TRUE(verdict.ordered || !verdict.steps) << name << ' ' << to_string(mutation.kind);
        if (!verdict.ordered) continue;
        EXPECT_TRUE(verdict.exact || !verdict.programs) << name << ' ' << to_string(mutation.kind);
        (verdict.programs ? proved : refused) += 1;
      }
    }
  }
  EXPECT_GT(proved, 100);
  EXPECT_GT(refused, 100);
}

/// Enough ranks for three threads, where there are as many cores.
TEST(VerifyPrograms, VerdictsOfSeveralThreadsAreThoseOfOne) {
  const Plan plan = ring_forward(192);
  EXPECT_TRUE(verdicts(plan).programs);
  for (const Rank rank : {0, 95, 191}) {
    Plan broken = plan;
    const auto attends = [](const Op& op) { return op.kind == OpKind::Attend; };
    const auto first = std::ranges::find_if(ops(broken, rank), attends);
    ASSERT_NE(first, ops(broken, rank).end());
    ops(broken, rank).erase(first);
    const Verdicts verdict = verdicts(broken);
    EXPECT_FALSE(verdict.exact || verdict.programs) << "rank " << rank;
  }
  // Ranks of all threads wait for each other, and the programs end.
  Plan other_order = plan;
  for (Rank at = 0; at < 192; ++at) std::swap(ops(other_order, at)[0], ops(other_order, at)[1]);
  const Verdicts waiting = verdicts(other_order);
  EXPECT_TRUE(waiting.exact && !waiting.programs);
}

}  // namespace
}  // namespace armillary::plan::verifier
