// trace_test.cpp: the trace of simulated passes, as a reader such as Perfetto takes it.
#include "armillary/predict/sim/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "armillary/plan/passes/lower.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/sim/engine.h"
#include "armillary/predict/sim/testing/clusters.h"

namespace armillary::sim {
namespace {

// Backward has sums that travel on lanes of their own.
TEST(Trace, NamesTheLanesOfAllPassesAndHasTheBytesOfMessages) {
  constexpr int kRanks = 4;
  const plan::Problem problem{.world = kRanks,
                              .heads = 4,
                              .kv_heads = 4,
                              .dtype = plan::Dtype::Bf16,
                              .mask = plan::parse_mask("causal", {1024, 1024})};
  std::vector<plan::Plan> plans;
  std::vector<Timeline> timelines;
  for (plan::Plan& plan : make_plans(problem, plan::parse_strategy("ring"),
                                     {plan::Pass::Forward, plan::Pass::Backward})) {
    plans.push_back(plan::lower(std::move(plan)));
    timelines.push_back(simulate(plans.back(), testing::flat(kRanks), {.record = {.ops = true}}));
  }
  std::set<std::pair<int, int>> lanes;
  std::set<std::pair<int, int>> used;
  std::map<int, std::int64_t> sent_bytes;
  const auto trace =
      nlohmann::json::parse(to_trace({{plans[0], timelines[0]}, {plans[1], timelines[1]}}));
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "C") continue;
    const std::pair<int, int> lane(event["pid"], event["tid"]);
    if (event["name"] == "thread_name") {
      EXPECT_TRUE(lanes.insert(lane).second) << "lane " << lane.second << " has two names";
    }
    if (event["ph"] != "X") continue;
    used.insert(lane);
    const std::int64_t bytes = event["args"]["bytes"];
    EXPECT_EQ(bytes > 0, event["cat"] == "message") << event.dump();
    if (event["name"].get<std::string>().starts_with("send")) sent_bytes[lane.first] += bytes;
  }
  EXPECT_EQ(lanes, used);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(sent_bytes[rank],
              timelines[0].ranks[rank].sent_bytes + timelines[1].ranks[rank].sent_bytes);
  }
}

}  // namespace
}  // namespace armillary::sim
