// report_test.cpp: the data of a page, passes, phases and the load of channels, and pages that are
// refused.
#include "armillary/lab/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "armillary/core/testing/expect_error.h"
#include "armillary/lab/report/channel_load.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/sim/engine.h"
#include "armillary/predict/sim/testing/clusters.h"

namespace armillary::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Report small_report(const std::string& strategy, int world = 4) {
  const plan::Problem problem{.world = world,
                              .heads = 4,
                              .kv_heads = 4,
                              .dtype = plan::Dtype::Bf16,
                              .mask = plan::parse_mask("causal", {4096, 4096}),
                              .layout = plan::parse_layout("zigzag")};
  Report report{.mask = "causal", .cluster = sim::testing::flat(world), .passes = {}};
  for (plan::Plan& plan : plan::make_plans(problem, plan::parse_strategy(strategy),
                                           {plan::Pass::Forward, plan::Pass::Backward})) {
    plan = plan::lower(std::move(plan));
    sim::Timeline timeline =
        simulate(plan, report.cluster, {.record = {.ops = true, .flows = true}});
    report.passes.push_back({.plan = std::move(plan), .timeline = std::move(timeline)});
  }
  return report;
}

TEST(Report, DataHasEveryOpAndEveryPair) {
  for (const std::string strategy : {"ring", "usp:u=2", "tokenring", "attention2d:rows=2"}) {
    const Report report = small_report(strategy);
    const auto json = nlohmann::json::parse(to_json(report));
    EXPECT_EQ(json["world"], 4);
    for (std::size_t p = 0; p < report.passes.size(); ++p) {
      double pairs = 0;
      for (std::size_t r = 0; r < 4; ++r) {
        const auto& ops = json["passes"][p]["ranks"][r]["ops"];
        ASSERT_EQ(ops.size(), report.passes[p].plan.ranks[r].ops.size());
        for (const auto& op : ops) {
          if (op.size() == 8 && op[6].is_array()) pairs += op[5].get<double>();
        }
      }
      const plan::Problem& problem = report.passes[p].plan.problem;
      EXPECT_EQ(pairs, static_cast<double>(problem.mask.area() * problem.heads)) << strategy;
    }
  }
}

TEST(Report, ChannelsCarryTheBytesOfTheTimeline) {
  Report report = small_report("ring");
  constexpr int kParts = 50;
  for (const double burst : {0.0, 1e4}) {
    for (sim::LinkRule& link : report.cluster.links) link.burst_bytes = burst;
    const sim::Timeline timeline =
        simulate(report.passes[0].plan, report.cluster, {.record = {.flows = true}});
    sim::Topology topology(report.cluster, 4);
    const std::vector<ChannelLoad> loads = channel_loads(timeline, topology, kParts);
    ASSERT_EQ(loads.size(), timeline.channels.size());
    EXPECT_EQ(timeline.flows[0].passed_bytes, burst);
    for (std::size_t c = 0; c < loads.size(); ++c) {
      EXPECT_EQ(loads[c].name, timeline.channels[c].name);
      EXPECT_DOUBLE_EQ(loads[c].bytes, timeline.channels[c].bytes);
      double share = 0;
      for (const double part : loads[c].share) share += part / kParts;
      EXPECT_NEAR(share, timeline.channels[c].busy_share, 1e-9);
    }
  }
}

TEST(Report, DataHasPhasesOfInference) {
  Report report = small_report("ring", 2);
  EXPECT_EQ(nlohmann::json::parse(to_json(report))["phases"].size(), 0U);
  report.phases = {{"time to first token", 2, {{"attention", 1.5}, {"products", 0.5}}}};
  report.phase_notes = {"A sentence."};
  const auto json = nlohmann::json::parse(to_json(report));
  const auto& phase = json["phases"][0];
  EXPECT_EQ(phase["name"], "time to first token");
  EXPECT_EQ(phase["total_us"], 2e6);
  EXPECT_EQ(phase["terms"][0][0], "attention");
  EXPECT_EQ(phase["terms"][0][1], 1.5e6);
  EXPECT_EQ(json["phase_notes"][0], "A sentence.");
}

TEST(Report, PageHoldsTextThatLooksLikeTags) {
  Report report = small_report("ring", 2);
  report.cluster.name = "</script><b>";
  const std::string page = to_html(report);
  EXPECT_THAT(page, Not(HasSubstr("</script><b>")));
  EXPECT_THAT(page, HasSubstr("&lt;/script>&lt;b>"));
  EXPECT_THAT(page, HasSubstr("\\u003c/script>"));
}

TEST(Report, RefusesMoreRanksThanAPageHolds) {
  Report report = small_report("ring", 2);
  report.passes[0].plan.problem.world = kMaxRanks + 1;
  EXPECT_THAT(error_of([&] { to_html(report); }), HasSubstr("report: world 257; at most"));
}

}  // namespace
}  // namespace armillary::report
