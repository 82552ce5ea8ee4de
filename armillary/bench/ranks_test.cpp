#include "armillary/bench/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <ctime>

#include "armillary/core/error.h"

namespace armillary::bench {
namespace {

TEST(Ranks, AreTheSameThreadsInEveryRound) {
  Ranks ranks(2);
  std::array<std::thread::id, 2> first, second;
  ranks.run([&](comm::Communicator& comm) { first[comm.rank()] = std::this_thread::get_id(); });
  ranks.run([&](comm::Communicator& comm) { second[comm.rank()] = std::this_thread::get_id(); });
  EXPECT_EQ(first, second);
  EXPECT_NE(first[0], first[1]);
}

TEST(Ranks, TheTimeIsThatOfTheSlowest) {
  Ranks ranks(2);
  const double seconds = ranks.run([](comm::Communicator& comm) {
    if (comm.rank() == 0) return;
    const timespec pause{.tv_sec = 0, .tv_nsec = 20'000'000};
    nanosleep(&pause, nullptr);
  });
  EXPECT_GE(seconds, 0.02);
}

TEST(Ranks, OnlyTimedRepeatsCount) {
  Ranks ranks(2);
  std::array<int, 2> count = {};
  const double seconds = ranks.run(
      [&](comm::Communicator& comm) {
        if (++count[comm.rank()] > 2) return;
        const timespec pause{.tv_sec = 0, .tv_nsec = 500'000'000};
        nanosleep(&pause, nullptr);
      },
      {.untimed = 2, .timed = 3});
  EXPECT_THAT(count, testing::Each(5));
  EXPECT_LT(seconds, 0.5 / 3);
}

TEST(Ranks, TheTimeIsThatOfOne) {
  Ranks ranks(1);
  const double seconds = ranks.run(
      [](comm::Communicator& /*comm*/) {
        const timespec pause{.tv_sec = 0, .tv_nsec = 100'000'000};
        nanosleep(&pause, nullptr);
      },
      {.timed = 3});
  EXPECT_GE(seconds, 0.1);
  EXPECT_LT(seconds, 0.3);
}

TEST(Ranks, WhatIsLongIsTimedOnce) {
  EXPECT_EQ(repeats_for(1).timed, 1);
  EXPECT_EQ(repeats_for(0.001).timed, 2);
  EXPECT_EQ(repeats_for(0).timed, 1000);
}

TEST(Ranks, AFailureIsTheCallers) {
  Ranks ranks(2);
  const auto fails = [](comm::Communicator& comm) {
    if (comm.rank() == 1) fail<InvalidArgument>("rank 1 cannot");
  };
  EXPECT_THAT([&] { ranks.run(fails); }, testing::ThrowsMessage<InvalidArgument>("rank 1 cannot"));
}

TEST(RanksError, NoRanks) {
  EXPECT_THAT([] { Ranks(0); },
              testing::ThrowsMessage<InvalidArgument>("bench: world 0; at least 1 is required"));
}

}  // namespace
}  // namespace armillary::bench
