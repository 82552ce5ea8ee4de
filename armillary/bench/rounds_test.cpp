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

}  // namespace
}  // namespace armillary::bench
