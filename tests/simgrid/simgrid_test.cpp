// simgrid_test.cpp: the engine and SimGrid agree on the completion of every strategy to 1 %.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "armillary/plan/passes/lower.h"
#include "armillary/plan/strategy.h"
#include "armillary/sim/engine.h"
#include "armillary/sim/testing/clusters.h"
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

/// Strategies that are compared: each with all its keys, or the first of each name.
enum class Choice { Every, OneOfEachName };

std::vector<plan::Strategy> strategies_of(const plan::Problem& problem, Choice choice) {
  std::vector<plan::Strategy> all = plan::legal_strategies(problem);
  std::set<std::string> names;
  if (choice == Choice::OneOfEachName) {
    std::erase_if(all, [&](const auto& strategy) { return !names.insert(strategy.name).second; });
  }
  return all;
}

/// Compares both passes.
void expect_agreement(const sim::Cluster& cluster, int world, Choice choice = Choice::Every) {
  double worst = 0;
  int compared = 0;
  const plan::Problem problem = problem_of(world);
  for (const plan::Strategy& strategy : strategies_of(problem, choice)) {
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
      worst = std::max(worst, error);
      ++compared;
    }
  }
  std::printf("%s, %d ranks: %d passes, largest difference %.2g\n", cluster.name.c_str(), world,
              compared, worst);
}

/// The same cluster as MPI runs it: batches of a lane overlap.
sim::Cluster overlapped(sim::Cluster cluster) {
  cluster.messages.serial = false;
  return cluster;
}

TEST(SimGrid, AgreesOnAFlatCluster) {
  expect_agreement(sim::testing::flat(8), 8);
  expect_agreement(sim::testing::flat(16), 16, Choice::OneOfEachName);
}

TEST(SimGrid, AgreesOnTwoLevels) {
  expect_agreement(sim::testing::two_level(2, 4), 8);
  expect_agreement(sim::testing::two_level(4, 4), 16, Choice::OneOfEachName);
}

TEST(SimGrid, AgreesOnAPcieTree) {
  expect_agreement(sim::testing::pcie_tree(1), 8);
  expect_agreement(sim::testing::pcie_tree(2), 16, Choice::OneOfEachName);
}

TEST(SimGrid, AgreesOnOverlappedBatches) {
  expect_agreement(overlapped(sim::testing::two_level(2, 4)), 8);
}

}  // namespace
}  // namespace armillary::second
