#include "armillary/predict/sim/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "armillary/core/error.h"
#include "armillary/predict/sim/testing/clusters.h"

namespace armillary::sim {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> names(const Topology& topology, int from, int to) {
  std::vector<std::string> names;
  for (const int c : topology.route(from, to).channels) {
    names.push_back(topology.channels()[c].name);
  }
  return names;
}

TEST(Topology, RoutesAreShortest) {
  const Topology topology(testing::two_level(2, 2), 4);
  EXPECT_THAT(names(topology, 0, 1), ElementsAre("n0.d0>nvswitch0", "nvswitch0>n0.d1"));
  EXPECT_THAT(names(topology, 1, 2), ElementsAre("n0.d1>nvswitch0", "nvswitch0>network",
                                                 "network>nvswitch1", "nvswitch1>n1.d0"));
  EXPECT_DOUBLE_EQ(topology.route(1, 2).latency_s, 12e-6);
}

// Two ways of two links: the one with the wider channels is taken.
TEST(Topology, WiderRoutesWinOverNarrowOnesOfTheSameLength) {
  Cluster cluster = testing::flat(3);
  cluster.links.push_back({.from = "device", .to = "fast", .bytes_per_s = 5e9});
  EXPECT_THAT(names(Topology(cluster, 3), 0, 2), ElementsAre("n0.d0>fast", "fast>n0.d2"));
}

TEST(Topology, PairsAreLinkedDirectly) {
  Cluster cluster = testing::flat(4);
  cluster.links[0] = {.from = "device", .to = "device{j}", .bytes_per_s = 5e9};
  const Topology topology(cluster, 4);
  EXPECT_EQ(topology.channels().size(), 12U);
  EXPECT_THAT(names(topology, 3, 1), ElementsAre("n0.d3>n0.d1"));
}

TEST(Topology, RailsAndLeavesAreGroups) {
  Cluster cluster = testing::flat(2);
  cluster.nodes = 4;
  cluster.links = {{.from = "device", .to = "leaf{i}.{n/2}", .bytes_per_s = 1e9},
                   {.from = "leaf{i}.{n/2}", .to = "spine", .bytes_per_s = 1e9}};
  const Topology topology(cluster, 8);
  EXPECT_EQ(topology.channels().size(), 2U * (8 + 4));
  EXPECT_THAT(names(topology, 1, 3), ElementsAre("n0.d1>leaf1.0", "leaf1.0>n1.d1"));
  EXPECT_THAT(names(topology, 1, 4),
              ElementsAre("n0.d1>leaf1.0", "leaf1.0>spine", "spine>leaf0.1", "leaf0.1>n2.d0"));
}

TEST(Topology, AHalfDuplexLinkIsOneChannel) {
  Cluster cluster = testing::flat(3);
  cluster.links[0].half_duplex = true;
  EXPECT_EQ(Topology(cluster, 3).channels().size(), 3U);
}

TEST(Topology, LimitsOfFlowsAreTheSmallestOfTheRoute) {
  Cluster cluster = testing::two_level(2, 1);
  cluster.links[0].flow_bytes_per_s = 7e8;
  cluster.links[1].flow_rates = {{1000, 1e8}, {1e6, 9e8}};
  const Topology topology(cluster, 2);
  EXPECT_DOUBLE_EQ(topology.flow_limit(topology.route(0, 1), 1000), 1e8);
  EXPECT_DOUBLE_EQ(topology.flow_limit(topology.route(0, 1), 1e7), 7e8);
}

// Worked values: a rotation by a node maps a two-level network to itself, one by a device does not.
TEST(Topology, ItIsTheSameAfterSomeRotations) {
  const Topology topology(testing::two_level(4, 2), 8);
  EXPECT_EQ(topology.rotated(2).size(), topology.channels().size());
  EXPECT_THAT(topology.rotated(1), ElementsAre());
  EXPECT_EQ(Topology(testing::flat(5), 5).rotated(1).size(), 10U);
  Cluster mesh = testing::flat(4);
  mesh.links[0] = {.from = "device", .to = "device{j}", .bytes_per_s = 5e9};
  EXPECT_EQ(Topology(mesh, 4).rotated(1).size(), 12U);
}

TEST(Topology, ALinkFromASwitchToItselfIsRefused) {
  Cluster cluster = testing::flat(2);
  cluster.links.push_back({.from = "switch", .to = "switch", .bytes_per_s = 1});
  EXPECT_THROW(Topology(cluster, 2), InvalidArgument);
}

}  // namespace
}  // namespace armillary::sim
