// calibrate_test.cpp: the machine is described by a file that the simulator reads. Whether the
// numbers are right is measured by ./dev bench live; here they only have to be possible.
#include "armillary/lab/calibrate/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "armillary/core/error.h"
#include "armillary/lab/bench/thread_ranks.h"
#include "armillary/predict/cost/step.h"
#include "armillary/predict/sim/engine.h"

namespace armillary::calibrate {
namespace {

CalibrateCase small_case() {
  return {.name = "small",
          .dtypes = {plan::Dtype::F32},
          .head_dims = {16},
          .heads = 1,
          .most_tokens = 64};
}

plan::Problem small_problem(int world) {
  return {.world = world,
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 16,
          .value_dim = 16,
          .dtype = plan::Dtype::F32,
          .mask = plan::parse_mask("causal", {256, 256})};
}

TEST(Calibrate, WritesAFileThatIsReadAndSimulated) {
  CalibrateCase example = small_case();
  example.cores = 1;
  std::vector<std::string> parts;
  const sim::Cluster measured = calibrate(example, bench::make_thread_ranks,
                                          [&](const std::string& part) { parts.push_back(part); });
  EXPECT_THAT(parts, testing::Contains("kernels, fp32, head dim 16"));
  const std::string text = sim::to_toml(measured);
  const sim::Cluster cluster = sim::parse_cluster(text, "small.toml");
  EXPECT_EQ(cluster.devices(), 2) << text;
  ASSERT_EQ(cluster.device.kernels.size(), 4U) << text;  // Both passes, both masks.
  for (const sim::KernelCurve& curve : cluster.device.kernels) {
    EXPECT_EQ(curve.points.size(), 2U) << text;  // 32 and 64 tokens.
  }
  EXPECT_TRUE(cluster.messages.zero_copy);
  EXPECT_TRUE(cluster.host.computes);
  EXPECT_EQ(cluster.host.cores, 1) << "two ranks share a core";
  // Possible rates of one core: a slow one that is shared, and more than any has.
  EXPECT_GT(cluster.device.matmul_flops_per_s, 1e8) << text;
  EXPECT_LT(cluster.device.matmul_flops_per_s, 1e14) << text;
  const cost::Step step{
      .model = cost_of(cost::ModelShape{.layers = 2, .hidden = 64, .ffn = 128, .vocab = 100}),
      .seq = 256};
  EXPECT_GT(step_time(step, {}, cluster, {0.001}).products, 0) << "training steps can be simulated";
  for (const std::string strategy : {"ring", "ulysses", "tokenring"}) {
    const plan::Planner planner(small_problem(2), plan::parse_strategy(strategy));
    for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
      const double seconds = simulate(planner, pass, cluster).end_s;
      EXPECT_TRUE(std::isfinite(seconds) && seconds > 0) << strategy << ": " << seconds;
    }
  }
}

TEST(Calibrate, ARankAloneHasNoLinks) {
  CalibrateCase example = small_case();
  example.world = example.ranks_per_node = 1;
  const sim::Cluster cluster = calibrate(example, bench::make_thread_ranks);
  EXPECT_TRUE(cluster.links.empty());
  const plan::Planner planner(small_problem(1), plan::parse_strategy("ring"));
  EXPECT_GT(simulate(planner, plan::Pass::Forward, cluster).end_s, 0);
}

TEST(Calibrate, RefusesCases) {
  const auto expect_refusal = [](const CalibrateCase& example, const char* text) {
    try {
      calibrate(example, bench::make_thread_ranks);
      ADD_FAILURE() << "no error: " << text;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(text));
    }
  };
  CalibrateCase example = small_case();
  example.ranks_per_node = 3;
  expect_refusal(example, "2 ranks, 3 on a node");
  example = small_case();
  example.dtypes.clear();
  expect_refusal(example, "0 dtypes, 1 head dim, 1 head; at least 1 each");
  example = small_case();
  example.most_tokens = 8;
  expect_refusal(example, "blocks of up to 8 tokens; at least 32");
}

}  // namespace
}  // namespace armillary::calibrate
