// heartbeat_test.cpp: when a wait is over and whom it blames. A Watch gets made-up times and
// answers of peers: no thread, no clock. Peers compute, sleep, stop, leave, and wait for each
// other.
#include "armillary/comm/liveness/heartbeat.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace armillary::comm {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// A wait of rank 0 with a timeout of 2 s, and the answers of the other ranks.
class Waiter {
 public:
  explicit Waiter(std::vector<int> peers, WatchFor what = WatchFor::Messages)
      : watch({.rank = 0, .peers = std::move(peers), .timeout_s = 2, .what = what}, 0) {}

  /// Lets time go on until the watch expires, for 20 s at most. `answer` is called for each rank
  /// that is asked. Returns the seconds.
  template <class Answer>
  double run(const Answer& answer) {
    for (double now_s = 0; now_s < 20; now_s += 0.05) {
      for (const int rank : watch.tick(now_s)) {
        questions[rank] = true;
        if (std::optional<Heartbeat> heartbeat = answer(rank, now_s)) watch.hear(rank, *heartbeat);
      }
      if (watch.expired()) return now_s;
    }
    return 20;
  }
  std::string reason() const {
    return watch.reason([](int rank) { return fmt::format("rank {}", rank); });
  }

  Watch watch;
  std::map<int, bool> questions;
};

/// The answer of a rank that computes, at a time.
Heartbeat computing(double now_s) {
  return {.progress = static_cast<std::uint64_t>(100 * now_s), .waits_for = {}};
}

TEST(Watch, APeerThatComputesIsWaitedFor) {
  Waiter waiter({1});
  EXPECT_EQ(waiter.run([](int, double now_s) { return std::optional(computing(now_s)); }), 20);
}

TEST(Watch, APeerThatDoesNotAnswerIsNot) {
  Waiter waiter({1, 2});
  const auto answer = [](int rank, double now_s) {
    return rank == 1 ? std::optional(computing(now_s)) : std::nullopt;
  };
  EXPECT_NEAR(waiter.run(answer), 2, 0.1);
  EXPECT_EQ(waiter.watch.culprit(), 2);
  EXPECT_TRUE(waiter.watch.culprit_is_lost());
  EXPECT_EQ(waiter.reason(), "; rank 2 does not answer");
}

TEST(Watch, TheTimeoutCountsFromTheLastProgress) {
  Waiter waiter({1});
  const auto answer = [](int, double now_s) {
    return now_s < 5 ? std::optional(computing(now_s)) : std::nullopt;
  };
  EXPECT_NEAR(waiter.run(answer), 7, 0.3);
}

TEST(Watch, APeerIsAsFarAsThoseThatItWaitsFor) {
  Waiter waiter({1});
  const auto answer = [](int rank, double now_s) {
    if (rank == 3) return computing(now_s);
    return Heartbeat{.waits_for = {rank + 1}};
  };
  EXPECT_EQ(waiter.run([&](int rank, double now_s) { return std::optional(answer(rank, now_s)); }),
            20);
  EXPECT_EQ(waiter.questions.size(), 3);
  // Rank 3 stops.
  Waiter other({1});
  EXPECT_NEAR(other.run([&](int rank, double now_s) {
    return rank == 3 && now_s > 4 ? std::nullopt : std::optional(answer(rank, now_s));
  }),
              6, 0.4);
  EXPECT_EQ(other.watch.culprit(), 3);
}

TEST(Watch, RanksThatWaitForEachOtherKeepNobodyAlive) {
  Waiter waiter({1});
  const auto answer = [](int rank, double /*now_s*/) {
    return std::optional(Heartbeat{.progress = 7, .waits_for = {rank == 1 ? 2 : 1}});
  };
  EXPECT_NEAR(waiter.run(answer), 2, 0.1);
  EXPECT_EQ(waiter.watch.culprit(), std::nullopt);
  EXPECT_EQ(waiter.reason(), "; all of them wait for each other");
  EXPECT_FALSE(waiter.watch.culprit_is_lost());
  // A cycle through the rank itself.
  Waiter own({1});
  EXPECT_NEAR(own.run([](int, double) { return std::optional(Heartbeat{.waits_for = {0}}); }), 2,
              0.1);
}

TEST(Watch, ARankThatAnswersAndDoesNothingIsToBlame) {
  Waiter waiter({1});
  EXPECT_NEAR(waiter.run([](int, double) { return std::optional(Heartbeat{.progress = 3}); }), 2,
              0.1);
  EXPECT_EQ(waiter.reason(), "; rank 1 answers, and neither waits for a message nor computes");
  EXPECT_FALSE(waiter.watch.culprit_is_lost());
}

TEST(Watch, ARankThatHasLeftIsNoHopeForMessages) {
  const auto left = [](int, double) { return std::optional(Heartbeat{.left = true}); };
  Waiter waiter({1});
  EXPECT_NEAR(waiter.run(left), 2, 0.1);
  EXPECT_EQ(waiter.reason(), "; rank 1 has ended its part");
  Waiter leaver({1, 2}, WatchFor::Leaving);
  EXPECT_EQ(leaver.run(left), 20);
}

TEST(Watch, ALeaverWaitsForThoseThatGetOn) {
  const auto answer = [](int rank, double now_s) {
    return rank == 1 && now_s > 3 ? std::nullopt : std::optional(computing(now_s));
  };
  Waiter leaver({1, 2}, WatchFor::Leaving);
  EXPECT_NEAR(leaver.run(answer), 5, 0.4);
  EXPECT_EQ(leaver.watch.culprit(), 1);
}

TEST(Watch, TimeInWhichTheProcessWasStoppedDoesNotCount) {
  Watch watch({.rank = 0, .peers = {1}, .timeout_s = 2}, 0);
  watch.tick(0.1);
  watch.tick(100);
  EXPECT_FALSE(watch.expired());
}

TEST(Watch, IsNotAskedTwiceAtATime) {
  Watch watch({.rank = 0, .peers = {1, 2}, .timeout_s = 2}, 0);
  EXPECT_THAT(watch.tick(0.1), ElementsAre(1, 2));
  EXPECT_THAT(watch.tick(0.2), IsEmpty());
  EXPECT_THAT(watch.tick(0.4), ElementsAre(1, 2));
}

TEST(Watch, AStoppedPeerIsToBlameThoughItAnsweredJustBefore) {
  // Rank 1 waits for rank 2, which computes, and is stopped 3 s after the begin of the wait.
  Waiter waiter({1});
  double end_s = 0;
  for (double now_s = 0; end_s == 0 && now_s < 20; now_s += 0.05) {
    for (const int rank : waiter.watch.tick(now_s)) {
      if (rank == 1 && now_s >= 3) continue;
      waiter.watch.hear(rank, rank == 1 ? Heartbeat{.waits_for = {2}} : computing(now_s));
    }
    if (now_s >= 3) waiter.watch.see_stopped({{1, 3.0}}, now_s);
    if (waiter.watch.expired()) end_s = now_s;
  }
  EXPECT_NEAR(end_s, 5, 0.1);
  EXPECT_EQ(waiter.watch.culprit(), 1);
  EXPECT_EQ(waiter.reason(), "; rank 1 does not answer: it is stopped");
}

TEST(Watch, AStopBeforeTheWaitCounts) {
  Watch watch({.rank = 0, .peers = {1}, .timeout_s = 2}, 100);
  watch.tick(100.2);
  watch.see_stopped({{1, 98.5}}, 100.2);
  EXPECT_FALSE(watch.expired());
  watch.tick(100.6);
  watch.see_stopped({{1, 98.5}}, 100.6);
  EXPECT_TRUE(watch.expired());
  // It goes on: the wait counts from its own begin again.
  watch.see_stopped({}, 100.6);
  EXPECT_FALSE(watch.expired());
}

void pause_for_a_look() {
  std::this_thread::sleep_for(std::chrono::milliseconds(8));
}

TEST(OwnHeartbeat, ProgressIsUseOfACoreOutsideOfWaits) {
  std::atomic<double> used_s = 0;
  OwnHeartbeat heartbeat([&] { return used_s.load(); });
  const auto gets_on = [&] {
    const std::uint64_t before = heartbeat.take().progress;
    pause_for_a_look();
    used_s = used_s + 10;
    return heartbeat.take().progress > before;
  };
  EXPECT_TRUE(gets_on());
  heartbeat.begin_wait({3, 1});
  EXPECT_FALSE(gets_on());
  EXPECT_THAT(heartbeat.take().waits_for, ElementsAre(3, 1));
  const std::uint64_t waiting = heartbeat.take().progress;
  heartbeat.end_wait();
  EXPECT_GT(heartbeat.take().progress, waiting) << "a wait that is over is progress";
  EXPECT_THAT(heartbeat.take().waits_for, IsEmpty());
  EXPECT_TRUE(gets_on());
  heartbeat.leave();
  EXPECT_FALSE(gets_on());
  EXPECT_TRUE(heartbeat.take().left);
}

TEST(OwnHeartbeat, ARankThatSleepsMakesNone) {
  OwnHeartbeat heartbeat([] { return 1.0; });
  const std::uint64_t before = heartbeat.take().progress;
  pause_for_a_look();
  EXPECT_EQ(heartbeat.take().progress, before);
  heartbeat.message_done();
  EXPECT_EQ(heartbeat.take().progress, before + 1);
}

TEST(Heartbeat, TravelsAsBytes) {
  Heartbeat heartbeat{.progress = 1ULL << 40, .left = true, .waits_for = {5, 1000000}};
  const Heartbeat came = heartbeat_of(to_bytes(heartbeat));
  EXPECT_EQ(came.progress, heartbeat.progress);
  EXPECT_TRUE(came.left);
  EXPECT_EQ(came.waits_for, heartbeat.waits_for);
  // As many as a notice has room for.
  heartbeat.waits_for.resize(1000);
  std::iota(heartbeat.waits_for.begin(), heartbeat.waits_for.end(), 0);
  EXPECT_EQ(heartbeat_of(to_bytes(heartbeat)).waits_for.size(), 240);
}

}  // namespace
}  // namespace armillary::comm
