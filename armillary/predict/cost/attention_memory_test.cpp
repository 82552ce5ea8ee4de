// attention_memory_test.cpp: the bytes of a problem are those that a simulation of it needs.
#include "armillary/predict/cost/attention_memory.h"

#include <gtest/gtest.h>

#include "armillary/predict/sim/engine.h"

namespace armillary::cost {
namespace {

TEST(Engine, TellsWhatIsTooLargeBeforeTheFirstEvent) {
  const plan::Problem problem{.world = 4,
                              .heads = 8,
                              .kv_heads = 4,
                              .head_dim = 128,
                              .value_dim = 128,
                              .dtype = plan::Dtype::Bf16,
                              .mask = plan::parse_mask("causal", {1000, 1000})};
  for (const char* const strategy : {"ring", "ulysses", "tokenring"}) {
    const plan::Planner planner(problem, plan::parse_strategy(strategy));
    for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
      sim::Cluster cluster = sim::load_cluster("c8");
      const auto is_told = [&](double bytes) {
        cluster.device.memory_bytes = bytes;
        bool told = false;
        simulate(planner, pass, cluster, {.on_too_large = [&] { told = true; }});
        return told;
      };
      const auto need = static_cast<double>(memory_need(planner, {pass}).bytes);
      EXPECT_FALSE(is_told(need)) << strategy;
      EXPECT_TRUE(is_told(need - 1)) << strategy;
    }
  }
}

}  // namespace
}  // namespace armillary::cost
