// fold_test.cpp: simulations of one rank of each kind have the times and bytes of all ranks; which
// plans and masks are folded, and into how many kinds.
#include "armillary/predict/sim/fold.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "armillary/core/error.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/sim/engine.h"
#include "armillary/predict/sim/testing/clusters.h"

namespace armillary::sim {
namespace {

plan::Problem alike_problem(int world) {
  const std::int64_t tokens = std::int64_t{512} * world;
  return {.world = world,
          .heads = 8,
          .kv_heads = 8,
          .head_dim = 64,
          .value_dim = 64,
          .dtype = plan::Dtype::Bf16,
          .mask = plan::full_mask({tokens, tokens})};
}

/// Every rank and channel of the world, from the folded timeline and from the other.
void expect_equal(const Timeline& folded, const Timeline& whole, const std::string& what) {
  const double near = 1e-9 * whole.end_s;
  EXPECT_NEAR(folded.end_s, whole.end_s, near) << what;
  for (int r = 0; r < whole.world; ++r) {
    const RankTimeline& rank = whole.ranks[r];
    const RankTimeline& alike = folded.ranks[r % folded.ranks.size()];
    EXPECT_NEAR(alike.end_s, rank.end_s, near) << what;
    EXPECT_NEAR(alike.compute_s, rank.compute_s, near) << what;
    EXPECT_NEAR(alike.messages_s, rank.messages_s, near) << what;
    EXPECT_NEAR(alike.exposed_s, rank.exposed_s, near) << what;
    EXPECT_EQ(alike.sent_bytes, rank.sent_bytes) << what;
    EXPECT_EQ(alike.slot_bytes, rank.slot_bytes) << what;
  }
  std::map<std::string, double> bytes;
  for (const ChannelUse& channel : whole.channels) bytes[channel.name] = channel.bytes;
  EXPECT_EQ(folded.channels.size(), bytes.size()) << what;
  for (const ChannelUse& channel : folded.channels) {
    EXPECT_NEAR(channel.bytes, bytes[channel.name], 1e-6 * bytes[channel.name])
        << what << " " << channel.name;
  }
}

TEST(SimFold, IsEqualToTheUnfolded) {
  Cluster in_order = testing::two_level(4, 8);
  in_order.messages = {.serial = false, .in_order = true};
  for (Cluster cluster :
       {testing::flat(32), testing::two_level(4, 8), in_order, testing::pcie_tree(4),
        testing::nic_per_device(4, 8), testing::rails(4, 8)}) {
    cluster.device.slowdown = {1, 1.25};
    for (const std::string strategy :
         {"ring", "allgather", "usp:u=4", "tokenring", "tokenring:nodes=4", "double_ring:window=8",
          "grid:rk=4,rq=4,u=2", "grid:rk=8,rq=4,u=1,row=ring"}) {
      const plan::Planner planner(alike_problem(32), plan::parse_strategy(strategy));
      for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
        const Timeline folded = simulate(planner, pass, cluster, {.fold = true});
        const std::string what = cluster.name + " " + strategy + " " + std::string(to_string(pass));
        EXPECT_LT(folded.ranks.size(), 32U) << what;
        expect_equal(folded, simulate(planner, pass, cluster), what);
      }
    }
  }
}

TEST(SimFold, HasAsManyClassesAsPlanAndClusterNeed) {
  const auto classes = [](const std::string& strategy, const Cluster& cluster) {
    const plan::Planner planner(alike_problem(32), plan::parse_strategy(strategy));
    return simulate(planner, plan::Pass::Forward, cluster, {.fold = true}).ranks.size();
  };
  EXPECT_EQ(classes("ring", testing::flat(32)), 1U);
  EXPECT_EQ(classes("ring", testing::two_level(4, 8)), 8U);
  EXPECT_EQ(classes("ring", testing::nic_per_device(4, 8)), 8U);
  EXPECT_EQ(classes("ring", testing::rails(4, 8)), 8U);
  EXPECT_EQ(classes("usp:u=4", testing::flat(32)), 4U);
  EXPECT_EQ(classes("grid:rk=4,rq=4,u=2", testing::two_level(4, 8)), 8U);
  EXPECT_EQ(classes("usp:inner=ring,u=2", testing::flat(32)), 32U)
      << "its rotations do not add one number to all ranks";
  EXPECT_EQ(classes("startrail:c=2", testing::flat(32)), 32U) << "its ranks are not alike";
}

// Which of two equal ways a message takes depends on the order of the links, which no shift keeps.
TEST(SimFold, TwoWaysThatAreEqualAreNotFolded) {
  Cluster cluster = testing::two_level(4, 8);
  const auto classes = [&cluster] {
    const plan::Planner planner(alike_problem(32), plan::parse_strategy("ring"));
    return simulate(planner, plan::Pass::Forward, cluster, {.fold = true}).ranks.size();
  };
  ASSERT_EQ(classes(), 8U);
  cluster.links[1].to = "one_network";
  cluster.links.push_back(cluster.links[1]);
  cluster.links[2].to = "another_network";
  EXPECT_EQ(classes(), 32U) << "two ways to the switch of another node";
  cluster = testing::nic_per_device(4, 8);
  ASSERT_EQ(classes(), 8U);
  cluster.links.push_back(cluster.links[1]);
  cluster.links[2].to = "another_network";
  EXPECT_EQ(classes(), 32U) << "two ways to the other device";
}

TEST(SimFold, AMaskWithAnEdgeIsNotFolded) {
  plan::Problem problem = alike_problem(8);
  problem.mask = plan::parse_mask("causal", {4096, 4096});
  problem.layout = plan::parse_layout("striped:1");
  const plan::Planner planner(problem, plan::parse_strategy("ring"));
  EXPECT_TRUE(planner.fold(plan::Pass::Forward).has_value());
  EXPECT_EQ(simulate(planner, plan::Pass::Forward, testing::flat(8), {.fold = true}).ranks.size(),
            8U);
}

TEST(SimFold, LargeWorldsThatAreNotFoldedAreRefused) {
  plan::Problem problem = alike_problem(16384);
  const std::int64_t tokens = problem.mask.q_len();
  problem.mask = plan::causal_mask({tokens, tokens}, plan::Align::Start);
  const plan::Planner planner(problem, plan::parse_strategy("ring"));
  try {
    simulate(planner, plan::Pass::Forward, testing::two_level(2048, 8), {.fold = true});
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(),
                ::testing::StartsWith("simulate: ring forward: 16384 ranks that differ"));
  }
}

TEST(SimFold, RunsALargeWorld) {
  const plan::Planner planner(alike_problem(4096), plan::parse_strategy("ring"));
  const Timeline timeline =
      simulate(planner, plan::Pass::Forward, testing::two_level(512, 8), {.fold = true});
  EXPECT_EQ(timeline.ranks.size(), 8U);
  EXPECT_EQ(timeline.world, 4096);
}

}  // namespace
}  // namespace armillary::sim
