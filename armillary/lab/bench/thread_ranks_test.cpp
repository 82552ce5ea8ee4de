#include "armillary/lab/bench/thread_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "armillary/core/error.h"

namespace armillary::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void pause(std::chrono::milliseconds length) {
  std::this_thread::sleep_for(length);
}

TEST(Ranks, AreTheSameThreadsInEveryRun) {
  ThreadRanks ranks(2);
  std::array<std::thread::id, 2> first, second;
  ranks.run([&](comm::Communicator& comm) { first[comm.rank()] = std::this_thread::get_id(); });
  ranks.run([&](comm::Communicator& comm) { second[comm.rank()] = std::this_thread::get_id(); });
  EXPECT_EQ(first, second);
  EXPECT_NE(first[0], first[1]);
}

TEST(Ranks, TheTimeIsThatOfTheSlowest) {
  ThreadRanks ranks(2);
  const double seconds = ranks.run([](comm::Communicator& comm) {
    if (comm.rank() == 0) return;
    pause(std::chrono::milliseconds(20));
  });
  EXPECT_GE(seconds, 0.02);
}

// Timed works begin when the untimed works of all ranks are over. A busy machine keeps these bounds
// too.
TEST(Ranks, OnlyTimedRepeatsCount) {
  ThreadRanks ranks(2);
  std::array<int, 2> count = {};
  std::array<Clock::time_point, 2> ends_of_untimed;
  const double seconds = ranks.run(
      [&](comm::Communicator& comm) {
        if (++count[comm.rank()] > 2) return;
        pause(std::chrono::milliseconds(100));
        ends_of_untimed[comm.rank()] = Clock::now();
      },
      {.untimed = 2, .timed = 3});
  EXPECT_THAT(count, testing::Each(5));
  EXPECT_LE(3 * seconds, seconds_since(std::max(ends_of_untimed[0], ends_of_untimed[1])));
}

TEST(Ranks, TheTimeIsThatOfOne) {
  ThreadRanks ranks(1);
  const Clock::time_point begin = Clock::now();
  const double seconds = ranks.run(
      [](comm::Communicator& /*comm*/) { pause(std::chrono::milliseconds(100)); }, {.timed = 3});
  EXPECT_GE(seconds, 0.1);
  EXPECT_LE(3 * seconds, seconds_since(begin));
}

TEST(Ranks, WhatIsLongIsTimedOnce) {
  EXPECT_EQ(repeats_for(1).timed, 1);
  EXPECT_EQ(repeats_for(0.001).timed, 2);
  EXPECT_EQ(repeats_for(0).timed, 1000);
}

TEST(Ranks, AFailureIsTheCallers) {
  ThreadRanks ranks(2);
  const auto fails = [](comm::Communicator& comm) {
    if (comm.rank() == 1) fail<InvalidArgument>("rank 1 cannot");
  };
  EXPECT_THAT([&] { ranks.run(fails); }, testing::ThrowsMessage<InvalidArgument>("rank 1 cannot"));
}

TEST(RanksError, NoRanks) {
  EXPECT_THAT([] { ThreadRanks(0); },
              testing::ThrowsMessage<InvalidArgument>("bench: world 0; at least 1 is required"));
}

}  // namespace
}  // namespace armillary::bench
