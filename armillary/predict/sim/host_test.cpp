// host_test.cpp: hosts whose threads compute, copy messages and share cores, and costs of ops by
// curves. Each test compares with a time that can be written down.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "armillary/core/error.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/predict/sim/engine.h"
#include "armillary/predict/sim/testing/clusters.h"

namespace armillary::sim {
namespace {

plan::Problem full_of(int world, std::int64_t tokens) {
  return {.world = world,
          .heads = 8,
          .kv_heads = 8,
          .head_dim = 64,
          .value_dim = 64,
          .dtype = plan::Dtype::Bf16,
          .mask = plan::full_mask({tokens, tokens})};
}

double seconds_of(const plan::Problem& problem, const std::string& strategy, const Cluster& cluster,
                  plan::Pass pass = plan::Pass::Forward) {
  const plan::Planner planner(problem, plan::parse_strategy(strategy));
  return simulate(planner, pass, cluster).end_s;
}

/// 1e12 FLOP/s: pairs of n tokens of 8 heads of 64.
double block_s(double n) {
  return 4 * n * n * 8 * 64 / 1e12;
}

TEST(Host, WorkOfACallComesFirst) {
  Cluster cluster = testing::flat(2);
  const plan::Problem problem = full_of(2, 8192);
  for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
    cluster.host = {};
    const double without = seconds_of(problem, "ring", cluster, pass);
    cluster.host = {.forward_s = 1e-3, .backward_s = 2e-3};
    const double more = pass == plan::Pass::Forward ? 1e-3 : 2e-3;
    EXPECT_NEAR(seconds_of(problem, "ring", cluster, pass), without + more, 1e-9);
  }
}

// Four ranks agree in two exchanges, each a latency and 1000 bytes at 1 GB/s. A rank alone has
// nobody to agree with.
TEST(Host, MessagesWaitForAgreement) {
  Cluster cluster = testing::flat(4);
  cluster.messages.latency_s = 1e-3;
  const plan::Problem problem = full_of(4, 1024);
  const double without = seconds_of(problem, "ulysses", cluster);
  cluster.host.agreement_bytes = 1000;
  EXPECT_NEAR(seconds_of(problem, "ulysses", cluster), without + 2 * (1e-3 + 1e-6), 1e-9);
  const double alone = seconds_of(full_of(1, 1024), "ring", cluster);
  EXPECT_NEAR(alone, block_s(1024), 1e-9);
}

// The first message of a ring of two is there after the first block, unless the thread that would
// start it computes that block.
TEST(Host, AThreadThatComputesStartsMessagesLater) {
  Cluster cluster = testing::flat(2);
  cluster.host.agreement_bytes = 1000;
  cluster.messages.latency_s = 1e-3;  // Ranks agree after they have begun to compute.
  const plan::Problem problem = full_of(2, 8192);
  const double block = block_s(4096);
  const double message = 2 * 2.0 * 4096 * 8 * 64 / 1e9;
  ASSERT_GT(block, message + 2e-3);
  const double free = seconds_of(problem, "ring", cluster);
  EXPECT_NEAR(free, Host::kSpinSeconds + 2 * block, 1e-9);
  // It waits for half of its block, also if it clears something before.
  cluster.host.computes = true;
  const double agreement = 1e-3 + 1e-6;
  ASSERT_GT(0.5 * block, agreement);
  EXPECT_NEAR(seconds_of(problem, "ring", cluster), agreement + 2 * block, 1e-9);
  Cluster agreed = cluster;
  agreed.host.agreement_bytes = 0;
  EXPECT_NEAR(seconds_of(problem, "allgather:slices=2", cluster),
              seconds_of(problem, "allgather:slices=2", agreed) + agreement, 1e-9);
  cluster.messages.latency_s = block;
  EXPECT_NEAR(seconds_of(problem, "ring", cluster), (0.5 + 1 + 1 + 1) * block + message, 1e-9);
}

// Rank 0 computes when rank 1 comes to the exchange of K and V, so rank 1 copies all four tiles.
TEST(Host, TheRankThatComesSecondCopies) {
  Cluster cluster = testing::flat(2);
  cluster.host = {.computes = true, .copies = true};
  const plan::Problem problem = full_of(2, 8192);
  const double tile = 2.0 * 4096 * 8 * 64 / 1e9;
  EXPECT_NEAR(seconds_of(problem, "ring", cluster), 4 * tile + 2 * block_s(4096), 1e-6);
  // Ranks that share memory borrow the tiles.
  cluster.messages.zero_copy = true;
  EXPECT_NEAR(seconds_of(problem, "ring", cluster), 2 * block_s(4096), 1e-6);
  // Between nodes nobody copies.
  cluster.messages.zero_copy = false;
  cluster.nodes = 2;
  cluster.devices_per_node = 1;
  EXPECT_NEAR(seconds_of(problem, "ring", cluster), 2 * block_s(4096), 1e-6);
}

TEST(Host, RanksShareCores) {
  Cluster cluster = testing::flat(4);
  const plan::Problem problem = full_of(4, 65536);
  const double alone = seconds_of(problem, "allgather", cluster);
  cluster.host.cores = 4;
  EXPECT_NEAR(seconds_of(problem, "allgather", cluster), alone, 1e-9);
  // Four ranks compute the same on two cores: compute, which hides all messages, lasts twice as
  // long.
  cluster.host.cores = 2;
  const double compute = 4 * block_s(16384);
  EXPECT_NEAR(alone, compute, 1e-4 * compute);
  EXPECT_NEAR(seconds_of(problem, "allgather", cluster), 2 * compute, 1e-4 * compute);
}

// The second block of a ring is added to the first: its accumulators are read.
TEST(Host, AccumulatorsThatAreReadTakeTime) {
  Cluster cluster = testing::flat(2);
  const plan::Problem problem = full_of(2, 8192);
  const double without = seconds_of(problem, "ring", cluster);
  cluster.device.carry_bytes_per_s = 1e10;
  const double accumulators = 4.0 * 4096 * 8 * 64;
  EXPECT_NEAR(seconds_of(problem, "ring", cluster), without + accumulators / 1e10, 1e-9);
}

// Rank 0 of a zigzag sees what one diagonal over both of its halves shows.
TEST(Costs, EdgesAreThatOfACausalBlock) {
  plan::Problem problem = full_of(2, 8192);
  problem.mask = plan::parse_mask("causal", {8192, 8192});
  problem.layout = plan::parse_layout("zigzag");
  const plan::Planner planner(problem, plan::parse_strategy("ring"));
  const plan::RankProgram program =
      plan::lower(problem, planner.blocks(), planner.program(plan::Pass::Forward, 0));
  const auto attend =
      std::ranges::find_if(program.ops, [](const plan::Op& op) { return attends(op); });
  ASSERT_NE(attend, program.ops.end());
  const OpWork work = WorkCounter(problem, planner.blocks(), true).of(program, *attend);
  EXPECT_DOUBLE_EQ(work.q_tokens, 4096);
  EXPECT_NEAR(work.edge_tokens, 4096, 1);
  EXPECT_NEAR(work.edge_rows, 8 * 4096, 8);
  EXPECT_EQ(WorkCounter(problem, planner.blocks(), false).of(program, *attend).edge_rows, 0);
  DeviceSpec device = testing::round_device();
  for (KernelCurve& curve : device.kernels) {
    if (curve.causal) curve.points = {{2048, 2e11}, {4096, 5e11}};
  }
  const double cut = 4 * 64 * work.cut_pairs / 1e12;
  const double full = 4 * 64 * work.full_pairs / 1e12;
  EXPECT_NEAR(DeviceCosts(device, problem).seconds(work), full + 2 * cut, 1e-9);
  device.mask_edges = true;
  EXPECT_NEAR(DeviceCosts(device, problem).seconds(work), 2 * (full + cut), 1e-3 * full);
}

// The causal curve is half of the full one: an edge row of a causal block of n takes as much again
// as its (n + 1) / 2 keys do.
TEST(Costs, AWindowHasTwoEdges) {
  plan::Problem problem = full_of(1, 4096);
  problem.mask = plan::parse_mask("window:left=1024,right=0", {4096, 4096});
  Cluster cluster = testing::flat(1);
  for (KernelCurve& curve : cluster.device.kernels) {
    if (curve.causal) curve.flops_per_s = 5e11;
  }
  cluster.device.mask_edges = true;
  const double pairs = 4096 * 1025.0 - 1024 * 1025.0 / 2;
  const double edge_rows = 4096 + 3072;
  const double keys = (2 * pairs / 4096 + 1) / 2;
  EXPECT_NEAR(seconds_of(problem, "ring", cluster), 4 * 64 * 8 * (pairs + edge_rows * keys) / 1e12,
              1e-9);
}

TEST(Costs, OpsHaveCurvesOfTheirOwn) {
  Cluster cluster = testing::flat(1);
  const OpWork work{.kind = plan::OpKind::Add, .bytes = 2e6};
  const plan::Problem problem = full_of(1, 64);
  cluster.device.memory_bytes_per_s = 1e9;
  EXPECT_DOUBLE_EQ(DeviceCosts(cluster.device, problem).seconds(work), 2e-3);
  cluster.device.memory = {{plan::OpKind::Merge, {{1e6, 1e10}}},
                           {plan::OpKind::Add, {{1e6, 2e9}, {4e6, 4e9}}}};
  EXPECT_DOUBLE_EQ(DeviceCosts(cluster.device, problem).seconds(work), 2e6 / 3e9);
}

TEST(Host, IsWrittenAndRead) {
  Cluster cluster = testing::flat(2);
  cluster.device.mask_edges = true;
  cluster.device.memory = {{plan::OpKind::Finish, {{1e6, 2e9}}}};
  cluster.device.carry_bytes_per_s = 3e9;
  cluster.device.host_bytes_per_s = 25e9;
  cluster.messages = {.latency_s = 1e-6, .serial = false, .zero_copy = true, .in_order = true};
  cluster.host = {.forward_s = 2e-6,
                  .backward_s = 3e-6,
                  .agreement_bytes = 1536,
                  .computes = true,
                  .copies = true,
                  .cores = 2};
  const Cluster read = parse_cluster(to_toml(cluster), "written");
  EXPECT_EQ(read.host, cluster.host) << to_toml(cluster);
  EXPECT_EQ(read.messages, cluster.messages) << to_toml(cluster);
  EXPECT_EQ(read.device.carry_bytes_per_s, 3e9);
  EXPECT_EQ(read.device.host_bytes_per_s, 25e9);
  EXPECT_TRUE(read.device.mask_edges);
  EXPECT_EQ(read.device.memory, cluster.device.memory) << to_toml(cluster);
}

TEST(Host, RefusesAnUnknownKey) {
  const std::string text = to_toml(testing::flat(2)) + "\n[host]\ncore = 2\n";
  try {
    parse_cluster(text, "mine.toml");
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("host.core is not a known key"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("nearest: cores"));
  }
}

}  // namespace
}  // namespace armillary::sim
