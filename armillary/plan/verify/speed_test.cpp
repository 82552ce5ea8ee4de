// speed_test.cpp: the times that verify promises, in CPU seconds. Asserted in release builds only.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <vector>

#include "armillary/plan/hazards.h"
#include "armillary/plan/verify/broken_plan.h"
#include "tests/sanitized.h"

namespace armillary::plan {
namespace {

#if defined(NDEBUG)
constexpr bool kRelease = !kSanitized;
#else
constexpr bool kRelease = false;
#endif

Problem make_problem(int world, const std::string& layout) {
  const std::int64_t length = std::int64_t{1024} * world;
  return {.world = world,
          .heads = 64,
          .kv_heads = 8,
          .dtype = Dtype::Bf16,
          .mask = causal_mask({length, length}, Align::Start),
          .layout = parse_layout(layout)};
}

/// CPU seconds of proving a plan; not those of making it.
double seconds_to_verify(const Problem& problem, const std::string& strategy, Pass pass) {
  const Plan plan = make_plan(problem, parse_strategy(strategy), pass);
  const std::clock_t start = std::clock();
  const std::vector<Diagnostic> found = verify(plan);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_EQ(found, std::vector<Diagnostic>{});
  return seconds;
}

TEST(VerifySpeed, SixtyFourRanksInASecond) {
  if (!kRelease) GTEST_SKIP() << "times of release builds";
  for (const std::string layout : {"zigzag", "balanced"}) {  // Blocks: 2 a rank, 16 a rank.
    for (const std::string strategy : {"ring", "allgather", "ulysses", "usp:u=8"}) {
      for (const Pass pass : {Pass::Forward, Pass::Backward}) {
        const double seconds = seconds_to_verify(make_problem(64, layout), strategy, pass);
        fmt::print("{:<10} {:<9} {:<9} {:.3f} s\n", strategy, layout, to_string(pass), seconds);
        EXPECT_LT(seconds, 1.0) << strategy << ", " << layout << ", " << to_string(pass);
      }
    }
  }
}

/// CPU seconds of both passes, with the planning.
double seconds_to_plan_and_verify(const Problem& problem, const std::string& strategy,
                                  const std::vector<Pass>& passes) {
  const std::clock_t start = std::clock();
  const std::vector<Plan> plans = make_plans(problem, parse_strategy(strategy), passes);
  for (const Plan& plan : plans) EXPECT_EQ(verify(plan), std::vector<Diagnostic>{}) << strategy;
  if (plans.size() == 2) {
    EXPECT_EQ(verify_saved(plans[0], plans[1]), std::vector<Diagnostic>{}) << strategy;
  }
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  fmt::print("{:<20} world {:<4} {:.3f} s\n", strategy, problem.world, seconds);
  return seconds;
}

const std::vector<Pass> kBoth{Pass::Forward, Pass::Backward};

/// The most ops that 64 ranks have: a slice for every KV head; with few and with many blocks a
/// rank. A process that does it takes two seconds at most; these are the seconds of both cores, on
/// a machine half as fast.
TEST(VerifySpeed, SixtyFourSlicesOfSixtyFourRanks) {
  if (!kRelease) GTEST_SKIP() << "times of release builds";
  for (const std::string layout : {"zigzag", "balanced"}) {
    Problem problem = make_problem(64, layout);
    problem.kv_heads = 64;
    EXPECT_LT(seconds_to_plan_and_verify(problem, "allgather:slices=64", {Pass::Forward}), 1.3)
        << layout;
    EXPECT_LT(seconds_to_plan_and_verify(problem, "allgather:slices=64", {Pass::Backward}), 3.5)
        << layout;
  }
}

/// The ring's backward is 13 million ops, in 3 GB.
TEST(VerifySpeed, AThousandRanksInAMinute) {
  if (!kRelease) GTEST_SKIP() << "times of release builds";
  const Problem problem = make_problem(1024, "zigzag");
  EXPECT_LT(seconds_to_plan_and_verify(problem, "grid:rk=8,rq=16,u=8", kBoth), 60);
  EXPECT_LT(seconds_to_plan_and_verify(problem, "usp:u=8", kBoth), 60);
  EXPECT_LT(seconds_to_plan_and_verify(problem, "ring", {Pass::Forward}), 60);
  EXPECT_LT(seconds_to_plan_and_verify(problem, "ring", {Pass::Backward}), 60);
}

/// What is derived and ordered stays in proportion to the plan, also where many messages share a
/// tile: every slice of a gather is 63 of them into a slot that held another slice.
TEST(VerifySpeed, OpsWaitForFewOthers) {
  Problem problem = make_problem(64, "zigzag");
  problem.kv_heads = 16;
  for (const Pass pass : kBoth) {
    const Planner planner(problem, parse_strategy("allgather:slices=16"));
    const RankProgram program = planner.program(pass, 5);
    std::size_t waits = 0;
    for (const std::vector<int>& of_op : dependencies(program)) waits += of_op.size();
    EXPECT_LT(waits, 3 * program.ops.size()) << to_string(pass);
  }
}

TEST(VerifySpeed, AllStrategiesOfEightRanksInASecond) {
  if (!kRelease) GTEST_SKIP() << "times of release builds";
  double seconds = 0;
  for (const std::string layout : {"contiguous", "zigzag", "striped:16", "balanced"}) {
    for (const std::string strategy : {"ring", "allgather", "ulysses", "usp:u=2", "usp:u=4"}) {
      for (const Pass pass : {Pass::Forward, Pass::Backward}) {
        seconds += seconds_to_verify(make_problem(8, layout), strategy, pass);
      }
    }
  }
  fmt::print("40 plans of 8 ranks: {:.3f} s\n", seconds);
  EXPECT_LT(seconds, 1.0);
}

}  // namespace
}  // namespace armillary::plan
