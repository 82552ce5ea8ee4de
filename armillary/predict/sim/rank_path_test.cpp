#include "armillary/predict/sim/rank_path.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "armillary/predict/sim/engine.h"
#include "armillary/predict/sim/testing/clusters.h"

namespace armillary::sim {
namespace {

plan::Problem path_problem(int world, const std::string& mask) {
  constexpr std::int64_t kTokens = 2048;
  return {.world = world,
          .heads = 8,
          .kv_heads = 4,
          .dtype = plan::Dtype::Bf16,
          .mask = plan::parse_mask(mask, {kTokens, kTokens}),
          .layout = plan::parse_layout("zigzag")};
}

/// Largest bound and estimate of all ranks.
RankPath largest(const plan::Planner& planner, plan::Pass pass, const Cluster& cluster) {
  std::vector<int> ranks(planner.problem().world);
  std::iota(ranks.begin(), ranks.end(), 0);
  const Topology topology(cluster, planner.problem().world);
  RankPath most;
  for (const RankPath& path : RankPaths(topology, ranks).paths(planner, pass, ranks)) {
    most.bound_s = std::max(most.bound_s, path.bound_s);
    most.estimate_s = std::max(most.estimate_s, path.estimate_s);
  }
  return most;
}

// Each of the P steps takes the longer of the kernel and the message: nothing waits for a peer.
TEST(RankPath, OfARingOnAFlatClusterIsTheSimulation) {
  plan::Problem problem = path_problem(4, "full");
  problem.layout = {};
  const plan::Planner planner(problem, plan::parse_strategy("ring"));
  const RankPath forward = largest(planner, plan::Pass::Forward, testing::flat(4));
  const double simulated = simulate(planner, plan::Pass::Forward, testing::flat(4)).end_s;
  EXPECT_NEAR(forward.estimate_s, simulated, 1e-9 * simulated);
  EXPECT_NEAR(forward.bound_s, simulated, 1e-9 * simulated);
  // Sums of dK, dV wait for the ranks before.
  const RankPath backward = largest(planner, plan::Pass::Backward, testing::flat(4));
  const double longer = simulate(planner, plan::Pass::Backward, testing::flat(4)).end_s;
  EXPECT_LE(backward.estimate_s, longer);
  EXPECT_GE(backward.estimate_s, 0.95 * longer);
}

TEST(RankPath, NoSimulationEndsBeforeTheBound) {
  Cluster slow = testing::two_level(2, 4);
  slow.device.slowdown = {1, 1.3};
  slow.messages = {.latency_s = 1e-5, .serial = false, .zero_copy = true};
  Cluster bursts = testing::two_level(2, 4);
  bursts.messages = {.serial = false, .in_order = true};
  bursts.links[1].burst_bytes = 1e5;
  for (const Cluster& cluster :
       {testing::flat(8), testing::two_level(2, 4), slow, bursts, testing::pcie_tree(1)}) {
    for (const char* mask : {"full", "causal", "window:left=100,right=30"}) {
      const plan::Problem problem = path_problem(8, mask);
      for (const plan::Strategy& strategy : plan::legal_strategies(problem)) {
        const plan::Planner planner(problem, strategy);
        for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
          const double simulated = simulate(planner, pass, cluster).end_s;
          EXPECT_LE(largest(planner, pass, cluster).bound_s, simulated * (1 + 1e-9))
              << cluster.name << " " << mask << " " << to_string(strategy) << " "
              << to_string(pass);
        }
      }
    }
  }
}

TEST(RankPath, CountsBytesAndMemoryOfTheProgram) {
  const plan::Planner planner(path_problem(4, "causal"), plan::parse_strategy("usp:u=2"));
  const Topology topology(testing::flat(4), 4);
  const RankPath path =
      RankPaths(topology, {0, 1, 2, 3}).paths(planner, plan::Pass::Forward, {2}).front();
  const Timeline timeline = simulate(planner, plan::Pass::Forward, testing::flat(4));
  EXPECT_EQ(path.sent_bytes, timeline.ranks[2].sent_bytes);
  EXPECT_EQ(path.memory_bytes, timeline.ranks[2].slot_bytes + timeline.ranks[2].external_bytes);
  EXPECT_NEAR(path.compute_s, timeline.ranks[2].compute_s, 1e-12);
}

}  // namespace
}  // namespace armillary::sim
