// bursts_test.cpp: what a bucket lets pass, and when it is full again, worked by hand; a simulated
// message that a bucket shortens; clusters with buckets as text, and unfolded.
#include "armillary/predict/sim/bursts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/sim/engine.h"
#include "armillary/predict/sim/testing/clusters.h"

namespace armillary::sim {
namespace {

/// Two devices and a switch, 1 GB/s; buckets of 1 MB, if any.
Cluster with_buckets(double bytes) {
  Cluster cluster = testing::flat(2);
  cluster.links[0].burst_bytes = bytes;
  return cluster;
}

std::vector<Crossing> route_of(const Topology& topology, int from, int to) {
  std::vector<Crossing> crossings;
  for (const int channel : topology.route(from, to).channels) crossings.push_back({channel});
  return crossings;
}

TEST(Bursts, ABucketFillsWhileNothingFlows) {
  const Topology topology(with_buckets(1e6), 2);
  const std::vector<Crossing> route = route_of(topology, 0, 1);
  Bursts bursts(topology);
  EXPECT_DOUBLE_EQ(bursts.start(0, route, 4e5), 4e5 - 1) << "a byte of each flow does not pass";
  EXPECT_DOUBLE_EQ(bursts.start(0, route, 1e9), 6e5 + 1) << "the rest of the bucket";
  EXPECT_DOUBLE_EQ(bursts.start(5, route, 1e9), 0) << "it does not fill beside flows";
  bursts.end(6, route);
  bursts.end(6, route);
  EXPECT_DOUBLE_EQ(bursts.start(7, route, 1e9), 0) << "one flow is left";
  bursts.end(8, route);
  bursts.end(8, route);
  EXPECT_DOUBLE_EQ(bursts.start(8 + 0x1p-12, route, 1e9), 1e9 * 0x1p-12) << "at the link's rate";
  bursts.end(9, route);
  EXPECT_DOUBLE_EQ(bursts.start(20, route, 1e9), 1e6) << "up to its size";
  // The other direction has buckets of its own.
  EXPECT_DOUBLE_EQ(bursts.start(20, route_of(topology, 1, 0), 1e9), 1e6);
}

TEST(Bursts, NothingPassesANarrowLinkWithoutABucket) {
  Cluster cluster = testing::two_level(2, 1);  // 10 GB/s within a node, 1 GB/s between nodes
  cluster.links[0].burst_bytes = 1e6;
  const Topology near(cluster, 2);
  EXPECT_EQ(Bursts(near).start(0, route_of(near, 0, 1), 1e9), 0);
  cluster.links[0].burst_bytes = 0;
  cluster.links[1].burst_bytes = 1e6;
  const Topology far(cluster, 2);
  EXPECT_EQ(Bursts(far).start(0, route_of(far, 0, 1), 1e9), 1e6);
}

// A ring of two sends K and V once, before it computes anything: one bucket of 1 MB is saved.
TEST(Bursts, AMessageAfterAPauseIsShorter) {
  const plan::Problem problem{.world = 2,
                              .heads = 8,
                              .kv_heads = 8,
                              .head_dim = 64,
                              .value_dim = 64,
                              .dtype = plan::Dtype::Bf16,
                              .mask = plan::full_mask({1 << 13, 1 << 13})};
  const plan::Planner planner(problem, plan::parse_strategy("ring"));
  const auto simulated = [&](double burst) {
    return simulate(planner, plan::Pass::Forward, with_buckets(burst), {.record = {.flows = true}});
  };
  const Timeline without = simulated(0);
  const Timeline with = simulated(1e6);
  EXPECT_NEAR(without.flows.back().end_s - with.flows.back().end_s, 1e6 / 1e9, 2e-9);
  EXPECT_EQ(with.channels[0].bytes, without.channels[0].bytes) << "what passes at once is counted";
  EXPECT_EQ(with.flows[0].passed_bytes, 1e6);
  EXPECT_THAT(to_json(with), ::testing::HasSubstr("\"passed_bytes\":1000000.0"));
  EXPECT_THAT(to_json(without), ::testing::Not(::testing::HasSubstr("passed_bytes")));
}

TEST(Bursts, RanksThatShareALinkAreNotFolded) {
  const plan::Problem problem{.world = 8,
                              .heads = 8,
                              .kv_heads = 8,
                              .dtype = plan::Dtype::Bf16,
                              .mask = plan::full_mask({4096, 4096})};
  const plan::Planner planner(problem, plan::parse_strategy("tokenring"));
  Cluster cluster = testing::two_level(2, 4);
  const auto ranks = [&] {
    return simulate(planner, plan::Pass::Forward, cluster, {.fold = true}).ranks.size();
  };
  EXPECT_EQ(ranks(), 4U);
  cluster.links[1].burst_bytes = 1e5;
  EXPECT_EQ(ranks(), 8U);
}

TEST(Bursts, BelowZeroAreRefused) {
  std::string text = to_toml(with_buckets(12345));
  text.replace(text.find("12345"), 5, "-1");
  try {
    parse_cluster(text, "mine.toml");
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("burst_bytes"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("-1"));
  }
}

TEST(Bursts, AreWrittenAndRead) {
  const Cluster cluster = with_buckets(12345);
  EXPECT_EQ(parse_cluster(to_toml(cluster), "written").links, cluster.links) << to_toml(cluster);
}

}  // namespace
}  // namespace armillary::sim
