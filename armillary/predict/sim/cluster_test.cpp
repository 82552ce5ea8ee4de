// cluster_test.cpp: presets and cluster files: sizes, units, what `like` takes over, what is
// refused, and curves between their points.
#include "armillary/predict/sim/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/predict/sim/topology.h"

namespace armillary::sim {
namespace {

TEST(Presets, AllAreConnectedClusters) {
  EXPECT_GE(preset_names().size(), 15U);
  for (const std::string& name : preset_names()) {
    const Cluster cluster = load_cluster(name);
    EXPECT_EQ(cluster.name, name);
    EXPECT_FALSE(cluster.summary.empty()) << name;
    const Topology topology(cluster, cluster.devices());
    EXPECT_GT(topology.channels().size(), 0U) << name;
    EXPECT_GT(cluster.device.kernels.size(), 0U) << name;
  }
}

// Nodes, and devices of a node, as the papers state them.
TEST(Presets, HaveTheSizesOfTheirSources) {
  const auto size = [](const std::string& name) {
    const Cluster cluster = load_cluster(name);
    return std::pair(cluster.nodes, cluster.devices_per_node);
  };
  EXPECT_EQ(size("c1"), std::pair(8, 8));
  EXPECT_EQ(size("c2"), std::pair(2, 16));
  EXPECT_EQ(size("c4"), std::pair(8, 4));
  EXPECT_EQ(size("c10"), std::pair(64, 1));
  EXPECT_EQ(size("c1:nodes=3"), std::pair(3, 8));
}

TEST(ClusterFile, UnitsBecomeSi) {
  const Cluster cluster = load_cluster("c8");
  EXPECT_EQ(cluster.device.name, "A10");
  EXPECT_DOUBLE_EQ(cluster.links[0].bytes_per_s, 26e9);
  EXPECT_DOUBLE_EQ(load_cluster("c7").links[0].flow_bytes_per_s, 12.9e9);
  EXPECT_DOUBLE_EQ(cluster.messages.latency_s, 8.4e-6);
  EXPECT_EQ(cluster.device.slowdown, (std::vector<double>{1, 1, 1.37}));
  EXPECT_EQ(cluster.device.kernels.size(), 4U);  // Both passes, both masks.
}

TEST(ClusterFile, ADeviceLikeAnotherKeepsWhatItDoesNotSay) {
  const DeviceSpec small = load_cluster("c2").device;
  const DeviceSpec large = load_cluster("c6").device;
  EXPECT_EQ(small.kernels, large.kernels);
  EXPECT_DOUBLE_EQ(small.memory_bytes * 2, large.memory_bytes);
}

TEST(ClusterFile, WhatIsWrittenIsReadAgain) {
  for (const std::string& name : preset_names()) {
    const Cluster cluster = load_cluster(name);
    EXPECT_EQ(parse_cluster(to_toml(cluster), "written"), cluster) << to_toml(cluster);
  }
  Cluster cluster = load_cluster("c6");
  cluster.name = "a \"b\" \\ c\n \u00e9";
  cluster.device.matmul_fp32_flops_per_s = 19e12;
  cluster.device.matmul_fp64_flops_per_s = 18e12;
  EXPECT_EQ(parse_cluster(to_toml(cluster), "written"), cluster) << to_toml(cluster);
}

// A second curve of an op would never be read.
TEST(ClusterFile, AnOpHasOneMemoryCurve) {
  Cluster cluster = load_cluster("c6");
  const std::vector<RatePoint> points{{1000, 1e9}};
  cluster.device.memory = {{plan::OpKind::Merge, points}, {plan::OpKind::Add, points}};
  EXPECT_EQ(parse_cluster(to_toml(cluster), "written"), cluster);
  cluster.device.memory.push_back({plan::OpKind::Merge, points});
  try {
    parse_cluster(to_toml(cluster), "written");
    FAIL() << "read";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("two curves of merge given; one is required"),
              std::string::npos)
        << error.what();
  }
}

TEST(ClusterFile, NamesAreShortAndHaveNoControlCharacters) {
  Cluster cluster = load_cluster("c6");
  for (const auto& [name, shown] :
       {std::pair<std::string, std::string>{"a\x1b[2J", R"('a\x1b[2J')"},
        {std::string(256, 'k'), "k.. (1 byte left out) ..k"}}) {
    cluster.name = name;
    try {
      parse_cluster(to_toml(cluster), "written");
      FAIL() << "read";
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("name is '"), std::string::npos) << text;
      EXPECT_NE(text.find(shown), std::string::npos) << text;
      EXPECT_NE(text.find("; a text of at most 255 bytes without control characters is required"),
                std::string::npos)
          << text;
    }
  }
}

TEST(Curves, AreInterpolatedInTheLogarithm) {
  const std::vector<RatePoint> points{{100, 10}, {400, 30}};
  EXPECT_DOUBLE_EQ(interpolate(points, 100), 10);
  EXPECT_DOUBLE_EQ(interpolate(points, 200), 20);
  EXPECT_DOUBLE_EQ(interpolate(points, 1000), 30);
  EXPECT_DOUBLE_EQ(interpolate(points, 50), 5);
  EXPECT_DOUBLE_EQ((KernelCurve{.flops_per_s = 8, .half_tokens = 100}.rate(300)), 6);
}

}  // namespace
}  // namespace armillary::sim
