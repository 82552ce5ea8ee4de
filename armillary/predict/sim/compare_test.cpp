#include "armillary/predict/sim/compare.h"

#include <gtest/gtest.h>

#include "armillary/predict/sim/engine.h"
#include "armillary/predict/sim/testing/clusters.h"

namespace armillary::sim {
namespace {

TEST(Compare, SortsStrategiesByTheirTime) {
  const plan::Problem problem{.world = 4,
                              .heads = 4,
                              .kv_heads = 4,
                              .dtype = plan::Dtype::Bf16,
                              .mask = plan::parse_mask("causal", {4096, 4096}),
                              .layout = plan::parse_layout("zigzag")};
  const std::vector<plan::Pass> passes{plan::Pass::Forward, plan::Pass::Backward};
  Cluster cluster = testing::flat(4);
  const std::vector<StrategyTimes> all = compare_strategies(problem, cluster, passes);
  EXPECT_EQ(all.size(), plan::legal_strategies(problem).size());
  for (std::size_t i = 1; i < all.size(); ++i) EXPECT_LE(all[i - 1].total_s(), all[i].total_s());
  const plan::Planner planner(problem, all[0].strategy);
  EXPECT_EQ(all[0].passes[1].end_s, simulate(planner, plan::Pass::Backward, cluster).end_s);
  EXPECT_TRUE(all[0].fits);
  cluster.device.memory_bytes = static_cast<double>(all[0].memory_bytes) - 1;
  EXPECT_FALSE(strategy_times(problem, all[0].strategy, cluster, passes).fits);
}

}  // namespace
}  // namespace armillary::sim
