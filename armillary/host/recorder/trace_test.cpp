#include "armillary/host/recorder/trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace armillary::recorder {
namespace {

TEST(RecorderTrace, HasOpsThatAreDoneFromTheFirstOn) {
  RecordedRun run;
  run.flights.emplace_back(Flight{.world = 2, .rank = 0});
  run.flights.emplace_back(std::nullopt);
  RecordedOp attend{
      .complete = true, .start_ns = 5'000'000, .end_ns = 7'000'000, .step = 3, .call = 2};
  attend.op.kind = plan::OpKind::Attend;
  attend.op.index = 4;
  attend.kind = "attend";
  RecordedOp send{.complete = true, .start_ns = 6'000'000, .end_ns = 9'000'000};
  send.op = {.kind = plan::OpKind::Send, .lane = 1, .index = 5, .peer = 1, .bytes = 64};
  send.kind = "send";
  RecordedOp under_way = send;
  under_way.complete = false;
  run.flights[0]->ops = {attend, send, under_way};
  const auto trace = nlohmann::json::parse(to_trace(run));
  const auto& events = trace["traceEvents"];
  ASSERT_EQ(events.size(), 5U) << "three names, two slices";
  EXPECT_EQ(events[0]["args"]["name"], "rank 0");
  EXPECT_EQ(events[2]["args"]["name"], "messages 1");
  EXPECT_EQ(events[3]["name"], "attend");
  EXPECT_EQ(events[3]["ts"], 0.0);
  EXPECT_NEAR(events[3]["dur"].get<double>(), 2000, 1e-6);
  EXPECT_EQ(events[3]["args"]["call"], 2);
  EXPECT_EQ(events[4]["name"], "send to 1");
  EXPECT_NEAR(events[4]["ts"].get<double>(), 1000, 1e-6);
  EXPECT_EQ(events[4]["tid"], 1);
}

}  // namespace
}  // namespace armillary::recorder
