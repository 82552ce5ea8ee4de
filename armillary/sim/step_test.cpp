#include "armillary/sim/step.h"

#include <gtest/gtest.h>

#include "armillary/core/error.h"

namespace armillary::sim {
namespace {

/// Llama 3 8B.
constexpr ModelShape kLlama{.layers = 32,
                            .hidden = 4096,
                            .heads = 32,
                            .kv_heads = 8,
                            .head_dim = 128,
                            .ffn = 14336,
                            .vocab = 128256};

TEST(ModelShape, CountsTheParametersOfLlama3) {
  EXPECT_DOUBLE_EQ(kLlama.layer_parameters(), 218103808);  // as published, without norms
  EXPECT_DOUBLE_EQ(kLlama.parameters(), 8029995008);
  ModelShape gpt = kLlama;
  gpt.gated = false;
  EXPECT_DOUBLE_EQ(kLlama.layer_parameters() - gpt.layer_parameters(), 4096.0 * 14336);
}

TEST(StepTime, NeedsTheRateOfMatrixProducts) {
  try {
    Cluster cluster = load_cluster("c8");
    cluster.device.matmul_flops_per_s = 0;
    step_time({.model = kLlama, .seq = 4096}, cluster, 0.01);
    FAIL() << "without a rate";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "step: device A10 of cluster c8 has no matmul_TFLOPs; the rate of matrix products "
                 "is required");
  }
}

TEST(StepTime, ProductsAreSharedByAllDevices) {
  const Cluster cluster = load_cluster("c5");
  Step step{.model = kLlama, .seq = 65536, .parallelism = {.sp = 16}};
  const StepTime wide = step_time(step, cluster, 0.01);
  EXPECT_DOUBLE_EQ(wide.products, 6 * (32 * 218103808.0 + 128256.0 * 4096) * 4096 /
                                      cluster.device.matmul_flops_per_s);
  EXPECT_DOUBLE_EQ(wide.attention, 0.32);
  EXPECT_EQ(wide.tensor_parallel, 0);
  step.parallelism = {.tp = 8, .sp = 2};
  const StepTime deep = step_time(step, cluster, 0.01);
  EXPECT_DOUBLE_EQ(deep.products, wide.products);
  EXPECT_GT(deep.tensor_parallel, 0);
  EXPECT_LT(deep.gradients, wide.gradients);  // an eighth of the parameters each
  step.parallelism = {.tp = 8, .sp = 4};
  EXPECT_THROW(step_time(step, cluster, 0.01), InvalidArgument);
}

TEST(StepMemory, ZeroStagesShareMore) {
  Step step{.model = kLlama, .seq = 65536, .parallelism = {.sp = 16, .zero = 0}};
  const StepMemory whole = step_memory(step);
  EXPECT_DOUBLE_EQ(whole.optimizer, 12.0 * 8029995008);
  step.parallelism.zero = 1;
  EXPECT_DOUBLE_EQ(step_memory(step).optimizer, whole.optimizer / 16);
  EXPECT_EQ(step_memory(step).gradients, whole.gradients);
  step.parallelism.zero = 3;
  EXPECT_DOUBLE_EQ(step_memory(step).parameters, whole.parameters / 16);
  step.parallelism.recompute = true;
  EXPECT_LT(step_memory(step).activations, whole.activations / 10);
}

TEST(GroupBandwidth, IsThatOfTheNarrowestPart) {
  const Cluster cluster = load_cluster("c5");  // 158 GB/s in a node, 24 for each device outside
  EXPECT_DOUBLE_EQ(group_bytes_per_s(cluster, 8, 1), 158e9);
  EXPECT_DOUBLE_EQ(group_bytes_per_s(cluster, 16, 1), 158e9);     // eight network links
  EXPECT_DOUBLE_EQ(group_bytes_per_s(cluster, 8, 2), 4 * 24e9);   // four of them a group
  EXPECT_DOUBLE_EQ(group_bytes_per_s(cluster, 8, 2, 1), 24e9);    // or one
  EXPECT_DOUBLE_EQ(group_bytes_per_s(cluster, 16, 1, 1), 158e9);  // of whole nodes: all
  EXPECT_DOUBLE_EQ(group_bytes_per_s(cluster, 2, 8), 24e9);
  EXPECT_DOUBLE_EQ(group_bytes_per_s(load_cluster("c2"), 32, 1), 10e9);  // one link a node
}

}  // namespace
}  // namespace armillary::sim
