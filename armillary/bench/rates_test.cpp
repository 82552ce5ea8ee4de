// What rates and counts of layers and kernels are of; whether they are fast is for ./dev bench.
#include <gtest/gtest.h>

#include "armillary/bench/kernel_rate.h"
#include "armillary/bench/layer.h"

namespace armillary::bench {
namespace {

TEST(KernelRate, IsInBillionsASecond) {
  KernelRate rate({.head_dim = 32, .tokens = 256, .heads = 2, .kv_heads = 1});
  EXPECT_DOUBLE_EQ(rate.facts().flops, 4.0 * 32 * 2 * 256 * 257 / 2);
  for (const Side& side : rate.sides()) {
    if (side.name != "kernel") continue;
    const double gflops = side.run();
    EXPECT_GT(gflops, 1e-3);
    EXPECT_LT(gflops, 1e4) << "no core has so many";
  }
}

TEST(Layer, CountsTheBuffersOfItsResults) {
  const plan::Problem problem{.world = 2,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_dim = 16,
                              .value_dim = 16,
                              .dtype = plan::Dtype::F32,
                              .mask = plan::parse_mask("causal", {32, 32})};
  Layer layer(problem, "ring", sample(plan::Dtype::F32, 32, 32, 4, 2, 16));
  layer.first_run();
  const std::int64_t forward = layer.allocations(false);
  const std::int64_t both = layer.allocations(true);
  EXPECT_GE(forward, 2) << "out and its log-sum-exp";
  EXPECT_GE(both, forward + 3) << "and three gradients";
  EXPECT_LT(both, 1000);
}

}  // namespace
}  // namespace armillary::bench
