// interpreter_test.cpp: the judge of mutants sees what no tile shows at the end: how often a row
// was added to the gradient of sinks, and in which dtype a sum has travelled.
#include "tests/mutation/interpreter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "armillary/plan/mutate.h"
#include "armillary/plan/passes/lower.h"
#include "tests/mutation/cases.h"

namespace armillary::mutation {
namespace {

using plan::Mutation;
using plan::MutationKind;
using plan::Op;
using plan::OpKind;

/// Backward of two ranks, each with a block of queries and two heads; sums travel in bf16.
plan::Plan backward_of(const char* strategy) {
  const plan::Problem problem{.world = 2,
                              .heads = 2,
                              .kv_heads = 2,
                              .head_dim = 2,
                              .value_dim = 3,
                              .dtype = plan::Dtype::Bf16,
                              .mask = plan::full_mask({.q = 8, .kv = 8}),
                              .transfer_dtype = plan::TransferDtype::Input};
  return make_plan(problem, plan::parse_strategy(strategy), plan::Pass::Backward);
}

int delta_of(const plan::Plan& plan, plan::Rank rank) {
  const std::vector<Op>& ops = plan.ranks[rank].ops;
  const auto delta =
      std::find_if(ops.begin(), ops.end(), [](const Op& op) { return op.kind == OpKind::Delta; });
  return static_cast<int>(delta - ops.begin());
}

TEST(Interpreter, CountsTheRowsOfEveryDelta) {
  const plan::Plan plan = backward_of("ring");
  const Interpretation expected = interpret(plan);
  ASSERT_TRUE(expected.finished);
  EXPECT_EQ(expected.sinks, (Terms{0, 1, 2, 3})) << "two blocks of two heads";
  const Mutation doubled{.kind = MutationKind::Doubled, .rank = 1, .op = delta_of(plan, 1)};
  const Interpretation twice = interpret(apply(plan, doubled));
  EXPECT_EQ(twice.sinks, (Terms{0, 1, 2, 2, 3, 3}));
  EXPECT_EQ(twice.cells, expected.cells) << "no tile shows it";
  EXPECT_FALSE(twice == expected);
}

// A ring of 4 receives into a slot from which it has sent: a tile sent from it as zero copy is
// gone.
TEST(Interpreter, SeesThatAZeroCopyIsWrittenOver) {
  const plan::Problem problem{.world = 4,
                              .heads = 2,
                              .kv_heads = 2,
                              .head_dim = 2,
                              .value_dim = 3,
                              .mask = plan::full_mask({.q = 8, .kv = 8})};
  const plan::Plan plan =
      lower(make_plan(problem, plan::parse_strategy("ring"), plan::Pass::Forward));
  ASSERT_TRUE(interpret(plan).finished);
  int sends = 0;
  for (std::size_t i = 0; i < plan.ranks[0].ops.size(); ++i) {
    const Op& op = plan.ranks[0].ops[i];
    if (op.kind != OpKind::Send || op.zero_copy) continue;
    ++sends;
    plan::Plan wrong = plan;
    wrong.ranks[0].ops[i].zero_copy = true;
    EXPECT_FALSE(interpret(wrong).finished);
  }
  EXPECT_EQ(sends, 2);
}

TEST(Interpreter, SeesInWhichDtypeASumHasTravelled) {
  const plan::Plan plan = backward_of("ring");
  const Interpretation expected = interpret(plan);
  int flipped = 0;
  for (const Mutation& mutation : mutations(plan)) {
    if (mutation.kind != MutationKind::OtherDtype) continue;
    ++flipped;
    const Interpretation other = interpret(apply(plan, mutation));
    EXPECT_TRUE(other.finished) << to_string(mutation);
    EXPECT_FALSE(other == expected) << to_string(mutation);
  }
  EXPECT_EQ(flipped, 4) << "dk and dv of both ranks";
}

}  // namespace
}  // namespace armillary::mutation
