// simgrid_test.cpp: the engine and SimGrid agree on the completion of every strategy to 1 %, on
// worlds of 8, 16 and 64 ranks. On 16 ranks one strategy of each name is compared, on 64 ranks a
// sample that ARMILLARY_TEST_SEED names; ARMILLARY_TEST_ALL=1 compares all strategies with all of
// their keys (minutes). Prints the largest difference of each cluster.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "armillary/plan/passes/lower.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/sim/engine.h"
#include "armillary/predict/sim/testing/clusters.h"
#include "tests/seed.h"
#include "tests/simgrid/replay.h"

namespace armillary::second {
namespace {

constexpr double kAgreement = 0.01;

/// Compute takes about as long as communication on these clusters, so both matter.
plan::Problem problem_of(int world) {
  return {.world = world,
          .heads = 64,
          .kv_heads = 16,
          .head_dim = 64,
          .value_dim = 64,
          .dtype = plan::Dtype::Bf16,
          .mask = plan::parse_mask("causal", {world * 512L, world * 512L}),
          .layout = plan::parse_layout("zigzag")};
}

/// Strategies that are compared if not all are: one of each name, or a random one.
enum class Selection { All, OneOfEachName, One };

std::vector<plan::Strategy> strategies_of(const plan::Problem& problem, Selection sample) {
  std::vector<plan::Strategy> all = plan::legal_strategies(problem);
  if (test_all() || sample == Selection::All) return all;
  if (sample == Selection::One) {
    std::mt19937 random(test_seed());
    return {all[std::uniform_int_distribution<std::size_t>(0, all.size() - 1)(random)]};
  }
  std::set<std::string> names;
  std::erase_if(all, [&](const auto& strategy) { return !names.insert(strategy.name).second; });
  return all;
}

/// Compares both passes.
void expect_agreement(const sim::Cluster& cluster, int world, Selection sample = Selection::All) {
  double worst = 0;
  int compared = 0;
  std::string worst_of;
  const plan::Problem problem = problem_of(world);
  for (const plan::Strategy& strategy : strategies_of(problem, sample)) {
    for (plan::Plan& plan :
         plan::make_plans(problem, strategy, {plan::Pass::Forward, plan::Pass::Backward})) {
      plan = plan::lower(std::move(plan));
      const std::optional<double> second = simgrid_end_s(plan, cluster);
      if (!second) GTEST_SKIP() << "[SKIP] no SimGrid (./dev setup test)";
      const double first = simulate(plan, cluster).end_s;
      const double error = std::abs(first / *second - 1);
      EXPECT_LE(error, kAgreement)
          << to_string(strategy) << " " << to_string(plan.pass) << " of " << world << " on "
          << cluster.name << ": " << first << " s, SimGrid " << *second << " s";
      if (error >= worst) worst_of = to_string(strategy) + " " + std::string(to_string(plan.pass));
      worst = std::max(worst, error);
      ++compared;
    }
  }
  std::printf("%s, %d ranks: %d passes, largest difference %.2g (%s)\n", cluster.name.c_str(),
              world, compared, worst, worst_of.c_str());
}

/// The same cluster as MPI runs it: batches of a lane overlap.
sim::Cluster overlapped(sim::Cluster cluster) {
  cluster.messages.serial = false;
  return cluster;
}

TEST(SimGrid, AgreesOnAFlatCluster) {
  expect_agreement(sim::testing::flat(8), 8);
  expect_agreement(sim::testing::flat(16), 16, Selection::OneOfEachName);
  expect_agreement(sim::testing::flat(64), 64, Selection::One);
}

TEST(SimGrid, AgreesOnTwoLevels) {
  expect_agreement(sim::testing::two_level(2, 4), 8);
  expect_agreement(sim::testing::two_level(4, 4), 16, Selection::OneOfEachName);
  expect_agreement(sim::testing::two_level(8, 8), 64, Selection::One);
}

TEST(SimGrid, AgreesOnAPcieTree) {
  expect_agreement(sim::testing::pcie_tree(1), 8);
  expect_agreement(sim::testing::pcie_tree(2), 16, Selection::OneOfEachName);
  expect_agreement(sim::testing::pcie_tree(8), 64, Selection::One);
}

TEST(SimGrid, AgreesOnOverlappedBatches) {
  expect_agreement(overlapped(sim::testing::two_level(2, 4)), 8);
}

TEST(SimGrid, AgreesOnMessagesInOrder) {
  sim::Cluster cluster = overlapped(sim::testing::two_level(2, 4));
  cluster.messages.in_order = true;
  expect_agreement(cluster, 8);
}

}  // namespace
}  // namespace armillary::second
