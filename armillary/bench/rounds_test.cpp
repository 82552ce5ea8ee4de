#include "armillary/bench/rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace armillary::bench {
namespace {

TEST(Rounds, SidesTakeTurns) {
  std::string turns;
  int calls = 0;
  const std::vector<Side> sides{{"a", [&] { return turns += 'a', 3.0 - calls++; }},
                                {"b", [&] { return turns += 'b', 7.0; }}};
  const Rounds rounds = take_turns(sides, 0);
  EXPECT_EQ(turns, "ababab");
  EXPECT_EQ(rounds.count, 3);
  EXPECT_THAT(rounds.medians, testing::ElementsAre(testing::Pair("a", 2), testing::Pair("b", 7)));
  EXPECT_THAT(rounds.leasts, testing::ElementsAre(testing::Pair("a", 1), testing::Pair("b", 7)));
}

TEST(Rounds, GoOnUntilTheTimeIsOver) {
  const std::vector<Side> sides{{"sleep", [] {
                                   return seconds_of([] {
                                     const timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
                                     nanosleep(&pause, nullptr);
                                   });
                                 }}};
  const Rounds rounds = take_turns(sides, 0.02);
  EXPECT_GT(rounds.count, 3);
  EXPECT_GE(rounds.medians.at("sleep"), 0.001);
}

Round round_of(double cores, double seconds) {
  return {{kCoresSide, cores}, {"side", seconds}};
}

TEST(SummaryOfRounds, LeavesOutThoseWithoutASecondCore) {
  const Rounds rounds = summarize(std::vector<Round>{
      round_of(1.99, 5), round_of(1.79, 1), round_of(1.8, 7), round_of(1.0, 2), round_of(2.01, 6)});
  EXPECT_EQ(rounds.count, 3);
  EXPECT_EQ(rounds.medians.at("side"), 6);
  EXPECT_EQ(rounds.leasts.at("side"), 5);
  EXPECT_EQ(rounds.medians.at(kCoresSide), 1.99);
  EXPECT_THAT(rounds.left_out, testing::ElementsAre(1.79, 1.0));
  EXPECT_FALSE(rounds.all_left_out);
}

TEST(SummaryOfRounds, IsOfAllWhereNoneHadASecondCore) {
  const Rounds rounds =
      summarize(std::vector<Round>{round_of(1.2, 5), round_of(1.1, 1), round_of(1.3, 7)});
  EXPECT_EQ(rounds.count, 3);
  EXPECT_EQ(rounds.medians.at("side"), 5);
  EXPECT_EQ(rounds.leasts.at("side"), 1);
  EXPECT_THAT(rounds.left_out, testing::ElementsAre(1.2, 1.1, 1.3));
  EXPECT_TRUE(rounds.all_left_out);
}

TEST(SummaryOfRounds, WithoutCoresAllCount) {
  const Rounds rounds = summarize(std::vector<Round>{{{"side", 1}}, {{"side", 3}}, {{"side", 2}}});
  EXPECT_EQ(rounds.count, 3);
  EXPECT_EQ(rounds.medians.at("side"), 2);
  EXPECT_THAT(rounds.left_out, testing::IsEmpty());
  EXPECT_FALSE(rounds.all_left_out);
}

}  // namespace
}  // namespace armillary::bench
