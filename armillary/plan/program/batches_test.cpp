// batches_test.cpp: the batches of a small program by hand, and the rule itself for the programs of
// all strategies: a message joins the batch before it on its lane if both have one step, and no
// other op joins any.
#include "armillary/plan/program/batches.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "armillary/plan/passes/lower.h"
#include "armillary/plan/testing/causal_problem.h"
#include "armillary/plan/testing/every_strategy.h"

namespace armillary::plan {
namespace {

using Lists = std::vector<std::vector<int>>;

/// The ops of each batch, lane by lane.
std::vector<Lists> by_lane(const Batches& batches) {
  std::vector<Lists> lanes;
  for (const int first : batches.first()) {
    Lists& lane = lanes.emplace_back();
    for (int b = first; b >= 0; b = batches[b].next) {
      const auto ops = batches.ops(batches[b]);
      lane.emplace_back(ops.begin(), ops.end());
    }
  }
  return lanes;
}

TEST(Batches, AreTheMessagesOfAStepAndEachComputeOp) {
  RankProgram program;
  program.ops = {{.kind = OpKind::Clear},
                 {.kind = OpKind::Send, .lane = 2, .peer = 1},
                 {.kind = OpKind::Recv, .lane = 2, .peer = 1},
                 {.kind = OpKind::Clear},
                 {.kind = OpKind::Send, .lane = 1, .peer = 1},
                 {.kind = OpKind::Recv, .lane = 2, .peer = 2},
                 {.kind = OpKind::Send, .lane = 2, .step = 1, .peer = 1}};
  const Batches batches(program);
  EXPECT_EQ(by_lane(batches), (std::vector<Lists>{{{0}, {3}}, {{4}}, {{1, 2, 5}, {6}}}));
  EXPECT_EQ(batches.order(), (std::vector<int>{0, 1, 2, 5, 3, 4, 6}));
  EXPECT_EQ(batches.of(5), batches.of(1));
  EXPECT_EQ(batches[batches.of(6)].step, 1);
  EXPECT_EQ(batches[batches.of(6)].lane, 2);
}

TEST(Batches, OfNoOpsAreNone) {
  const Batches batches(RankProgram{});
  EXPECT_TRUE(batches.all().empty());
  EXPECT_EQ(batches.first(), std::vector<int>{-1});
}

/// The rule, told op by op.
std::vector<Lists> by_rule(const RankProgram& program) {
  std::vector<Lists> lanes(1);
  std::map<Lane, int> last_step;
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    const Op& op = program.ops[i];
    if (static_cast<std::size_t>(op.lane) >= lanes.size()) lanes.resize(op.lane + 1);
    Lists& lane = lanes[op.lane];
    const bool joins = op.is_comm() && !lane.empty() && last_step[op.lane] == op.step;
    if (!joins) lane.emplace_back();
    lane.back().push_back(i);
    last_step[op.lane] = op.step;
  }
  return lanes;
}

TEST(Batches, FollowTheRuleInAllStrategies) {
  const Problem problem = causal_problem(8, 64);
  for (const std::string& name : every_strategy(problem)) {
    const Planner planner(problem, parse_strategy(name));
    for (const Pass pass : {Pass::Forward, Pass::Backward}) {
      const RankProgram program = lower(problem, planner.blocks(), planner.program(pass, 5));
      EXPECT_EQ(by_lane(Batches(program)), by_rule(program)) << name << ' ' << to_string(pass);
    }
  }
}

}  // namespace
}  // namespace armillary::plan
