// interleaved_timing_test.cpp: sides take turns until the time is over. They are functions that
// return made-up seconds; those that refuse leave, and turns in which a neighbour took a core are
// left out.
#include "armillary/lab/bench/interleaved_timing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace armillary::bench {
namespace {

TEST(TurnSummary, SidesTakeTurns) {
  std::string order;
  int calls = 0;
  const std::vector<Side> sides{{"a", [&] { return order += 'a', 3.0 - calls++; }},
                                {"b", [&] { return order += 'b', 7.0; }}};
  const TurnSummary turns = take_turns(sides, {.seconds = 0});
  EXPECT_EQ(order, "ababab");
  EXPECT_EQ(turns.count, 3);
  EXPECT_THAT(turns.medians, testing::ElementsAre(testing::Pair("a", 2), testing::Pair("b", 7)));
  EXPECT_THAT(turns.leasts, testing::ElementsAre(testing::Pair("a", 1), testing::Pair("b", 7)));
}

TEST(TurnSummary, WithoutSidesThereAreNoTurns) {
  const TurnSummary turns = take_turns({}, {.seconds = 3600});
  EXPECT_EQ(turns.count, 0);
  EXPECT_THAT(turns.medians, testing::IsEmpty());
}

TEST(TurnSummary, GoOnUntilTheTimeIsOver) {
  const std::vector<Side> sides{{"sleep", [] {
                                   return seconds_of([] {
                                     const timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
                                     nanosleep(&pause, nullptr);
                                   });
                                 }}};
  TurnSummary turns;
  EXPECT_GE(seconds_of([&] { turns = take_turns(sides, {.seconds = 0.1}); }), 0.1);
  EXPECT_GE(turns.medians.at("sleep"), 0.001);
}

TEST(TurnSummary, ASideThatRefusesHasAReasonAndTheOthersGoOn) {
  int calls = 0;
  const std::vector<Side> sides{
      {"early", []() -> double { throw SideRefused("not today"); }},
      {"late", [&] { return ++calls < 3 ? 1.0 : throw SideRefused("tired"); }},
      {"good", [] { return 7.0; }}};
  const TurnSummary turns = take_turns(sides, {.seconds = 0, .least = 5});
  EXPECT_EQ(turns.count, 5);
  EXPECT_EQ(calls, 3);
  EXPECT_THAT(turns.medians, testing::ElementsAre(testing::Pair("good", 7)));
  EXPECT_THAT(turns.reasons, testing::ElementsAre(testing::Pair("early", "not today"),
                                                  testing::Pair("late", "tired")));
}

TEST(TurnSummary, EndsWhenAllSidesHaveRefused) {
  const std::vector<Side> sides{{kCoresSide, [] { return 2.0; }},
                                {"a", []() -> double { throw SideRefused("not today"); }}};
  const TurnSummary turns = take_turns(sides, {.seconds = 3600});
  EXPECT_EQ(turns.count, 1);
  EXPECT_FALSE(turns.medians.contains("a"));
}

/// Each side may have its own look at the cores: the worst of them counts.
TEST(TurnSummary, TheLeastCoresOfATurnDecide) {
  std::vector<double> cores{1.9, 1.95, 1.9, 1.2};
  const auto next = [&] {
    const double value = cores.front();
    cores.erase(cores.begin());
    return value;
  };
  const std::vector<Side> sides{{kCoresSide, next}, {"a", [] { return 1.0; }}, {kCoresSide, next}};
  const TurnSummary turns = take_turns(sides, {.seconds = 0, .least = 2});
  EXPECT_EQ(turns.count, 1);
  EXPECT_THAT(turns.left_out, testing::ElementsAre(1.2));
}

Turn turn_of(double cores, double seconds) {
  return {{kCoresSide, cores}, {"side", seconds}};
}

TEST(SummaryOfTurns, LeavesOutThoseWithoutASecondCore) {
  const TurnSummary turns = summarize(std::vector<Turn>{
      turn_of(1.99, 5), turn_of(1.79, 1), turn_of(1.8, 7), turn_of(1.0, 2), turn_of(2.01, 6)});
  EXPECT_EQ(turns.count, 3);
  EXPECT_EQ(turns.medians.at("side"), 6);
  EXPECT_EQ(turns.leasts.at("side"), 5);
  EXPECT_EQ(turns.medians.at(kCoresSide), 1.99);
  EXPECT_THAT(turns.left_out, testing::ElementsAre(1.79, 1.0));
  EXPECT_FALSE(turns.all_left_out);
}

TEST(SummaryOfTurns, IsOfAllWhereNoneHadASecondCore) {
  const TurnSummary turns =
      summarize(std::vector<Turn>{turn_of(1.2, 5), turn_of(1.1, 1), turn_of(1.3, 7)});
  EXPECT_EQ(turns.count, 3);
  EXPECT_EQ(turns.medians.at("side"), 5);
  EXPECT_EQ(turns.leasts.at("side"), 1);
  EXPECT_THAT(turns.left_out, testing::ElementsAre(1.2, 1.1, 1.3));
  EXPECT_TRUE(turns.all_left_out);
}

TEST(SummaryOfTurns, WithoutCoresAllCount) {
  const TurnSummary turns =
      summarize(std::vector<Turn>{{{"side", 1}}, {{"side", 3}}, {{"side", 2}}});
  EXPECT_EQ(turns.count, 3);
  EXPECT_EQ(turns.medians.at("side"), 2);
  EXPECT_THAT(turns.left_out, testing::IsEmpty());
  EXPECT_FALSE(turns.all_left_out);
}

}  // namespace
}  // namespace armillary::bench
