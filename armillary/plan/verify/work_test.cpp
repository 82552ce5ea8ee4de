// work_test.cpp: verify tells few blocks and heads apart, and its cost follows from their number.
// These are counts, not times: `./dev bench verify` measures those.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "armillary/plan/program/hazards.h"
#include "armillary/plan/testing/broken_plan.h"
#include "armillary/plan/verify/classes.h"
#include "tests/sanitized.h"

namespace armillary::plan::verifier {
namespace {

#if defined(NDEBUG)
constexpr int kManyRanks = kSanitized ? 16 : 64;
#else
constexpr int kManyRanks = 16;
#endif

/// A problem of 4 ranks with 16 blocks each.
Sides sides_of_many_blocks(const std::string& strategy, Pass pass) {
  const Problem problem{.world = 4,
                        .heads = 8,
                        .kv_heads = 4,
                        .mask = full_mask({256, 256}),
                        .layout = parse_layout("balanced")};
  return sides_of(make_plan(problem, parse_strategy(strategy), pass));
}

/// With a full mask nothing tells apart the blocks of a rank, nor the heads that stay together.
TEST(VerifyWork, ClassesAreTheRanksAndTheHeadGroupsOfAFullMask) {
  struct Expected {
    std::string strategy;
    int q_heads, kv_heads;
  };
  for (const Expected& expected : {Expected{"ring", 1, 1}, Expected{"allgather:slices=2", 2, 2},
                                   Expected{"usp:u=2", 2, 2}, Expected{"ulysses", 4, 4}}) {
    for (const Pass pass : {Pass::Forward, Pass::Backward}) {
      const Sides sides = sides_of_many_blocks(expected.strategy, pass);
      SCOPED_TRACE(expected.strategy + ' ' + std::string(to_string(pass)));
      EXPECT_EQ(sides.q.blocks.count(), 4);
      EXPECT_EQ(sides.kv.blocks.count(), 4);
      EXPECT_EQ(sides.q.heads.count(), expected.q_heads);
      EXPECT_EQ(sides.kv.heads.count(), expected.kv_heads);
    }
  }
}

/// The work of the run on symbols: the views of all ops, and their cells (a block class with a head
/// class each).
struct SymbolWork {
  std::int64_t views = 0;
  std::int64_t cells = 0;
};

SymbolWork work_of(const Plan& plan, const Sides& sides) {
  SymbolWork work;
  for (const RankProgram& program : plan.ranks) {
    for (const Op& op : program.ops) {
      for (const View& view : op.views) {
        const SideClasses& side = sides.of(program.tiles[view.tile].tensor);
        int blocks = 0;
        for (const IdRun& run : view.blocks.runs()) blocks += side.blocks.within(run).count();
        work.cells += std::int64_t{blocks} * side.heads.within(view.heads).count();
        ++work.views;
      }
    }
  }
  return work;
}

/// At most two block classes a rank, however many blocks it has, and some cells a view, however
/// many ranks: without classes a view of these plans is hundreds of blocks and heads.
void expect_little_work(const Plan& plan) {
  constexpr std::int64_t kMostCells = 12;
  const Sides sides = sides_of(plan);
  EXPECT_LE(sides.q.blocks.count(), 2 * plan.problem.world);
  EXPECT_LE(sides.kv.blocks.count(), 2 * plan.problem.world);
  const SymbolWork work = work_of(plan, sides);
  EXPECT_LE(work.cells, kMostCells * work.views)
      << static_cast<double>(work.cells) / static_cast<double>(work.views) << " cells a view";
}

void expect_exact_with_little_work(const Problem& problem, const std::string& strategy) {
  SCOPED_TRACE(strategy + ", world " + std::to_string(problem.world));
  const std::vector<Plan> plans =
      make_plans(problem, parse_strategy(strategy), {Pass::Forward, Pass::Backward});
  for (const Plan& plan : plans) {
    SCOPED_TRACE(to_string(plan.pass));
    expect_little_work(plan);
    EXPECT_EQ(verify(plan), std::vector<Diagnostic>{});
  }
  EXPECT_EQ(verify_saved(plans[0], plans[1]), std::vector<Diagnostic>{});
}

Problem causal_problem(int world, const std::string& layout) {
  const std::int64_t length = std::int64_t{1024} * world;
  return {.world = world,
          .heads = 64,
          .kv_heads = 8,
          .dtype = Dtype::Bf16,
          .mask = causal_mask({length, length}, Align::Start),
          .layout = parse_layout(layout)};
}

TEST(VerifyWork, OfAnyStrategyIsAFewClassesAView) {
  for (const int world : {16, kManyRanks}) {
    const Problem problem = causal_problem(world, "balanced");  // the most blocks of all layouts
    for (const std::string strategy :
         {"ring", "allgather", "allgather:slices=8", "ulysses", "usp:u=8", "double_ring:window=8",
          "bidirectional_ring", "tokenring", "attention2d:rows=8", "startrail:c=4",
          "grid:u=4,rq=4,rk=1", "grid:u=4,rq=4,rk=4", "auto:traffic"}) {
      if (strategy.starts_with("grid") && strategy.ends_with(world == 16 ? "rk=4" : "rk=1")) {
        continue;  // for the other world
      }
      expect_exact_with_little_work(problem, strategy);
    }
  }
}

TEST(VerifyWork, OfAMillionOpsIsAFewClassesAView) {
  Problem many_slices = causal_problem(kManyRanks, "zigzag");
  many_slices.kv_heads = 64;
  expect_exact_with_little_work(many_slices, "allgather:slices=16");
}

/// The number of waits stays in proportion to the plan, also if many messages share a tile: every
/// slice of a gather is 63 of them into a slot that held another slice.
TEST(VerifyWork, OpsWaitForFewOthers) {
  const Problem problem{.world = 64,
                        .heads = 64,
                        .kv_heads = 16,
                        .mask = causal_mask({65536, 65536}, Align::Start),
                        .layout = parse_layout("zigzag")};
  for (const Pass pass : {Pass::Forward, Pass::Backward}) {
    const Planner planner(problem, parse_strategy("allgather:slices=16"));
    const RankProgram program = planner.program(pass, 5);
    std::size_t waits = 0;
    for (const std::vector<int>& of_op : dependencies(program)) waits += of_op.size();
    EXPECT_LT(waits, 3 * program.ops.size()) << to_string(pass);
  }
}

}  // namespace
}  // namespace armillary::plan::verifier
