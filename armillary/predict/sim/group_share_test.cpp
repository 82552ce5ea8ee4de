// group_share_test.cpp: the routes of a group are those of its devices in the whole cluster, and
// links that groups share are divided among them.
#include "armillary/predict/sim/group_share.h"

#include <gtest/gtest.h>

#include "armillary/predict/sim/testing/clusters.h"
#include "armillary/predict/sim/topology.h"

namespace armillary::sim {
namespace {

/// Least capacity on the way between two devices.
double width(const Topology& topology, int from, int to) {
  double least = kNoCap;
  for (const int channel : topology.route(from, to).channels) {
    least = std::min(least, topology.channels()[channel].bytes_per_s);
  }
  return least;
}

TEST(GroupShare, RoutesAreThoseOfTheWholeCluster) {
  for (const Cluster& whole :
       {testing::pcie_tree(2), testing::two_level(2, 8), testing::rails(2, 8),
        testing::nic_per_device(2, 8), load_cluster("c7")}) {
    for (const int groups : {1, 2, 4, 8}) {
      const Cluster share = group_share(whole, groups);
      ASSERT_EQ(share.devices() * groups, whole.devices());
      const Topology all(whole, whole.devices());
      const Topology of_group(share, share.devices());
      for (int a = 0; a < share.devices(); ++a) {
        for (int b = 0; b < share.devices(); ++b) {
          if (a == b) continue;
          const MessageRoute& one = of_group.route(a, b);
          const MessageRoute& other = all.route(a * groups, b * groups);
          EXPECT_EQ(one.channels.size(), other.channels.size())
              << whole.name << " " << groups << ": " << a << " to " << b;
          EXPECT_EQ(one.latency_s, other.latency_s);
        }
      }
    }
  }
}

TEST(GroupShare, LinksAreDividedAmongTheGroupsThatUseThem) {
  const Cluster whole = testing::pcie_tree(1);
  // Two devices are on a PCIe switch (4 GB/s up), four on a host bridge (5 GB/s to the other).
  const Topology two(group_share(whole, 2), 4);
  EXPECT_EQ(width(two, 0, 1), 2e9) << "devices 0 and 2: both groups go through their switches";
  EXPECT_EQ(width(two, 1, 2), 2e9) << "devices 2 and 4, by the bridge: 2.5 GB/s";
  const Topology four(group_share(whole, 4), 2);
  EXPECT_EQ(width(four, 0, 1), 1.25e9) << "devices 0 and 4: two groups a switch, four a bridge";
}

TEST(GroupShare, AMeshOfDevicesIsNotShared) {
  const Cluster mesh{.name = "mesh",
                     .nodes = 1,
                     .devices_per_node = 4,
                     .device = testing::round_device(),
                     .links = {{.from = "device", .to = "port{n}.{i}", .bytes_per_s = 8e9},
                               {.from = "port{n}.{i}", .to = "port{n}.{j}", .bytes_per_s = 3e9}}};
  EXPECT_EQ(width(Topology(group_share(mesh, 2), 2), 0, 1), 3e9);
}

}  // namespace
}  // namespace armillary::sim
