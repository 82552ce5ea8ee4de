// diagnosis_test.cpp: verdicts and causes of runs that are written down here as flights of ranks:
// who is silent, who waits for whom, which error was first.
#include "armillary/host/recorder/diagnosis.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace armillary::recorder {
namespace {

using plan::OpKind;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A run of `world` ranks on host h with pids 100, 101, .., in which every rank began call 2 of
/// step 7 at second 0 and attends. Seconds are those of both clocks.
class Runs {
 public:
  explicit Runs(int world) {
    run_.states.assign(world, ProcessState::Alive);
    for (int rank = 0; rank < world; ++rank) {
      run_.flights.push_back(Flight{.world = world,
                                    .rank = rank,
                                    .host = "h",
                                    .pid = 100 + rank,
                                    .work = {.step = 7,
                                             .call = 2,
                                             .pass = "forward",
                                             .strategy = "ring",
                                             .activity = "forward and backward",
                                             .activity_number = 2}});
    }
  }
  Flight& operator[](int rank) { return *run_.flights[rank]; }
  void lose_file(int rank) {
    run_.flights[rank].reset();
    run_.states[rank] = ProcessState::Unknown;
  }
  void set_state(int rank, ProcessState state) { run_.states[rank] = state; }
  void set_now(double second) { run_.now_ns = static_cast<std::int64_t>(second * 1e9); }

  void start(int rank, const StartedOp& op, double second) {
    Flight& flight = (*this)[rank];
    flight.ops.push_back({.number = flight.ops.size(),
                          .start_ns = static_cast<std::int64_t>(second * 1e9),
                          .step = flight.work.step,
                          .call = flight.work.call,
                          .pass = flight.work.pass,
                          .op = op,
                          .kind = std::string(to_string(OpKind(op.kind)))});
  }
  void attends(int rank, double second) {
    start(rank, {.kind = OpKind::Attend, .plan_step = 1, .index = 4}, second);
  }
  /// Waits for a message of `peer` since then.
  void receives(int rank, int peer, double second) {
    start(rank,
          {.kind = OpKind::Recv, .lane = 1, .plan_step = 1, .index = 3, .peer = peer, .bytes = 64},
          second);
    waits(rank, Wait::Messages, second);
  }
  void sends(int rank, int peer, double second) {
    start(rank,
          {.kind = OpKind::Send, .lane = 1, .plan_step = 1, .index = 2, .peer = peer, .bytes = 64},
          second);
    waits(rank, Wait::Messages, second);
  }
  void waits(int rank, Wait why, double second) {
    (*this)[rank].wait = why;
    (*this)[rank].wait_since_ns = static_cast<std::int64_t>(second * 1e9);
  }
  /// Waits until these ranks have made the same call.
  void agrees(int rank, const std::vector<int>& group, double second) {
    (*this)[rank].groups = {group};
    (*this)[rank].wait_group = 1;
    waits(rank, Wait::Agreement, second);
  }
  void sums(int rank, double second) {
    Flight& flight = (*this)[rank];
    flight.work.activity = "sum of gradients";
    flight.work.activity_number = 3;
    flight.work.activity_bytes = 4096;
    flight.work.collective = true;
    flight.work.activity_since_ns = flight.work.since_ns = static_cast<std::int64_t>(second * 1e9);
  }
  void fails(int rank, End end, const std::string& reason, double second) {
    (*this)[rank].end = end;
    (*this)[rank].reason = reason;
    (*this)[rank].end_ns = static_cast<std::int64_t>(second * 1e9);
  }
  Diagnosis diagnosis(std::optional<int> known_end = {}) const { return diagnose(run_, known_end); }

 private:
  RecordedRun run_;
};

TEST(Diagnosis, TheRankThatTheOthersWaitFor) {
  Runs runs(4);
  runs.attends(2, 1);
  runs.receives(3, 2, 1.5);
  runs.receives(0, 3, 2);
  runs.receives(1, 0, 2.5);
  runs.sends(1, 2, 2.5);
  runs.set_now(5.2);
  const Diagnosis diagnosis = runs.diagnosis();
  EXPECT_EQ(diagnosis.verdict, RunVerdict::Stuck);
  EXPECT_THAT(diagnosis.waits_for,
              ElementsAre(ElementsAre(3), ElementsAre(0, 2), IsEmpty(), ElementsAre(2)));
  EXPECT_THAT(diagnosis.causes, ElementsAre(2));
  EXPECT_EQ(
      diagnosis.cause,
      "rank 2 (host h, pid 102, alive) has done nothing for 4.2 s, in step 7, ring forward of "
      "call 2, plan step 1, attend (op 4); ranks 0, 1 and 3 wait for it: rank 3 in plan step "
      "1, recv (op 3) of 64 bytes from rank 2 on lane 1");
  EXPECT_FALSE(diagnosis.is_cycle);
}

TEST(Diagnosis, AShortSilenceIsWork) {
  Runs runs(2);
  runs.attends(0, 1);
  runs.receives(1, 0, 1);
  runs.set_now(1.9);
  const Diagnosis diagnosis = runs.diagnosis();
  EXPECT_EQ(diagnosis.verdict, RunVerdict::UnderWay);
  EXPECT_EQ(diagnosis.cause, "none: the run is under way, in step 7");
  EXPECT_THAT(diagnosis.causes, IsEmpty());
}

TEST(Diagnosis, ADeadlockIsNamed) {
  Runs runs(4);
  runs.receives(1, 2, 1);
  runs.receives(2, 3, 1);
  runs.receives(3, 1, 1);
  runs.receives(0, 1, 1);
  runs.set_now(4);
  const Diagnosis diagnosis = runs.diagnosis();
  EXPECT_EQ(diagnosis.verdict, RunVerdict::Stuck);
  EXPECT_TRUE(diagnosis.is_cycle);
  EXPECT_THAT(diagnosis.causes, ElementsAre(1, 2, 3));
  EXPECT_EQ(diagnosis.cause,
            "a deadlock: ranks 1 -> 2 -> 3 -> 1 wait for each other for 3 s; rank 1 (host h, pid "
            "101, alive) in step 7, ring forward of call 2, plan step 1, recv (op 3) of 64 bytes "
            "from rank 2 on lane 1");
}

TEST(Diagnosis, ARankThatIsStoppedWhileItWaitsIsNoDeadlock) {
  Runs runs(3);
  runs.receives(0, 1, 1);
  runs.receives(1, 2, 1);
  runs.receives(2, 1, 1);
  runs.set_state(2, ProcessState::Stopped);
  runs.set_now(4);
  const Diagnosis diagnosis = runs.diagnosis();
  EXPECT_FALSE(diagnosis.is_cycle);
  EXPECT_THAT(diagnosis.causes, ElementsAre(2));
  EXPECT_THAT(diagnosis.cause, HasSubstr("rank 2 (host h, pid 102, stopped) has done nothing"));
}

TEST(Diagnosis, AnErrorOfItsOwnIsTheCause) {
  Runs runs(3);
  runs.receives(0, 1, 1);
  runs.attends(1, 1);
  runs.attends(2, 0.5);
  runs.fails(1, End::Failed, "the kernel broke", 1.1);
  runs.fails(0, End::FailedWithPeers, "rank 1 failed: the kernel broke", 1.2);
  const Diagnosis diagnosis = runs.diagnosis();
  EXPECT_EQ(diagnosis.verdict, RunVerdict::Failed);
  EXPECT_EQ(
      diagnosis.cause,
      "rank 1 (host h, pid 101, alive) failed in step 7, ring forward of call 2, plan step 1, "
      "attend (op 4): the kernel broke");
}

// The deadline of rank 0 passes; rank 1 comes too late and hears of it, or never ends.
TEST(Diagnosis, ADeadlineIsNotTheFaultOfTheRankThatWaited) {
  for (const bool ends : {true, false}) {
    Runs runs(3);
    runs.receives(0, 1, 1);
    runs.attends(1, 0.9);
    runs.receives(2, 0, 1);
    runs.fails(0, End::FailedWithPeers, "rank 0 failed: wait: ..", 3);
    runs.fails(2, End::FailedWithPeers, "rank 0 failed: wait: ..", 3.001);
    if (ends) runs.fails(1, End::FailedWithPeers, "rank 0 failed: wait: ..", 9);
    runs.set_now(20);
    const Diagnosis diagnosis = runs.diagnosis();
    EXPECT_EQ(diagnosis.verdict, RunVerdict::Failed);
    EXPECT_THAT(diagnosis.causes, ElementsAre(1));
    EXPECT_THAT(diagnosis.cause,
                testing::AllOf(HasSubstr("rank 1 (host h, pid 101, alive) has done nothing for 2.1 "
                                         "s, in step 7, ring forward of call 2"),
                               HasSubstr("; ranks 0 and 2 wait for it")));
  }
}

// Rank 1 wakes after the failure, ends its op and goes on for a while: all that does not count.
TEST(Diagnosis, WorkAfterTheFirstFailureIsUndone) {
  Runs runs(2);
  runs.attends(1, 0.9);
  runs.receives(0, 1, 1);
  runs.fails(0, End::FailedWithPeers, "rank 0 failed: wait: ..", 3);
  runs[1].ops[0].complete = true;
  runs[1].ops[0].end_ns = 8'000'000'000;
  runs[1].earlier_work = {runs[1].work};
  runs[1].work = {.since_ns = 8'100'000'000, .step = 8, .activity = "reading data"};
  runs.receives(1, 0, 8.5);
  runs.fails(1, End::FailedWithPeers, "rank 0 failed: wait: ..", 9);
  const Diagnosis diagnosis = runs.diagnosis();
  EXPECT_THAT(diagnosis.waits_for, ElementsAre(ElementsAre(1), IsEmpty()));
  EXPECT_EQ(
      diagnosis.cause,
      "rank 1 (host h, pid 101, alive) has done nothing for 2.1 s, in step 7, ring forward of "
      "call 2, plan step 1, attend (op 4); rank 0 waits for it: rank 0 in plan step 1, recv "
      "(op 3) of 64 bytes from rank 1 on lane 1");
}

// A message of the wrong size fails at once: nobody was silent.
TEST(Diagnosis, AnErrorWithoutSilenceIsThatOfTheFirst) {
  Runs runs(2);
  runs.receives(0, 1, 1);
  runs.attends(1, 1.5);
  runs.fails(1, End::FailedWithPeers, "rank 1 failed: equal sizes are required", 1.501);
  runs.fails(0, End::FailedWithPeers, "rank 1 failed: equal sizes are required", 1.502);
  const Diagnosis diagnosis = runs.diagnosis();
  EXPECT_THAT(diagnosis.cause,
              HasSubstr("rank 1 (host h, pid 101, alive) failed first, in step 7"));
  EXPECT_THAT(diagnosis.cause, HasSubstr("attend (op 4): rank 1 failed: equal sizes are required"));
}

TEST(Diagnosis, AKilledProcessBesideOthersThatFail) {
  Runs runs(3);
  runs.attends(1, 1);
  runs.receives(2, 1, 1);
  runs.receives(0, 2, 1);
  runs.set_state(1, ProcessState::Gone);
  runs.fails(0, End::FailedWithPeers, "rank 1 failed: its process ended", 1.5);
  const Diagnosis diagnosis = runs.diagnosis();
  EXPECT_EQ(diagnosis.verdict, RunVerdict::Failed);
  EXPECT_THAT(diagnosis.causes, ElementsAre(1));
  EXPECT_THAT(diagnosis.cause,
              HasSubstr("rank 1 (host h, pid 101, gone) has done nothing for 0.5 s"));
  EXPECT_THAT(diagnosis.cause, HasSubstr("; ranks 0 and 2 wait for it"));
}

// A launcher saw the process of rank 1 end. By the files alone, rank 0 could as well be the cause.
TEST(Diagnosis, AnEndThatIsKnownIsTheCause) {
  Runs runs(3);
  runs.attends(0, 1);
  runs.attends(1, 1);
  runs.receives(2, 1, 1);
  for (const int rank : {0, 1, 2}) runs.set_state(rank, ProcessState::Gone);
  const Diagnosis diagnosis = runs.diagnosis(1);
  EXPECT_EQ(diagnosis.verdict, RunVerdict::Gone);
  EXPECT_EQ(diagnosis.cause,
            "rank 1 (host h, pid 101, gone) was in step 7, ring forward of call 2, plan step 1, "
            "attend (op 4); rank 2 waits for it: rank 2 in plan step 1, recv (op 3) of 64 bytes "
            "from rank 1 on lane 1");
  runs.fails(1, End::Failed, "the disk is full", 1.5);
  EXPECT_THAT(runs.diagnosis(1).cause, HasSubstr("attend (op 4): the disk is full"));
}

TEST(Diagnosis, AllProcessesAreKilledWhileTheyWork) {
  Runs runs(2);
  runs.attends(0, 1);
  runs.receives(1, 0, 1);
  for (const int rank : {0, 1}) runs.set_state(rank, ProcessState::Gone);
  runs.set_now(1000);
  const Diagnosis diagnosis = runs.diagnosis();
  EXPECT_EQ(diagnosis.verdict, RunVerdict::Gone);
  EXPECT_EQ(diagnosis.cause,
            "ranks 0 and 1 ended without a word, killed or crashed; rank 0 (host h, pid 100, gone) "
            "was in step 7, ring forward of call 2, plan step 1, attend (op 4); rank 1 waits for "
            "it: rank 1 in plan step 1, recv "
            "(op 3) of 64 bytes from rank 0 on lane 1");
}

// Killed by hand after rank 0 had been silent for long: silence is counted to the last record.
TEST(Diagnosis, AllProcessesAreKilledWhileTheyHang) {
  Runs runs(3);
  runs.attends(0, 1);
  runs.receives(1, 0, 1);
  runs.receives(2, 1, 8);
  for (const int rank : {0, 1, 2}) runs.set_state(rank, ProcessState::Gone);
  runs.set_now(1000);
  const Diagnosis diagnosis = runs.diagnosis();
  EXPECT_EQ(diagnosis.verdict, RunVerdict::Gone);
  EXPECT_THAT(diagnosis.cause,
              HasSubstr("rank 0 (host h, pid 100, gone) has done nothing for 7 s"));
}

TEST(Diagnosis, ARankThatEndedEarly) {
  Runs runs(2);
  runs.receives(0, 1, 1);
  runs[1].end = End::Done;
  runs.set_now(4);
  const Diagnosis diagnosis = runs.diagnosis();
  EXPECT_EQ(diagnosis.verdict, RunVerdict::Stuck);
  EXPECT_EQ(
      diagnosis.cause,
      "rank 1 (host h, pid 101, alive) has ended, after step 7; rank 0 waits for it: rank 0 in "
      "plan step 1, recv (op 3) of 64 bytes from rank 1 on lane 1");
}

TEST(Diagnosis, ARankWithoutAFile) {
  Runs runs(2);
  runs.receives(0, 1, 1);
  runs.lose_file(1);
  runs.fails(0, End::FailedWithPeers, "rank 0 failed: wait: ..", 3);
  EXPECT_EQ(runs.diagnosis().cause,
            "rank 1 has no flight file; rank 0 waits for it: rank 0 in plan step 1, recv (op 3) of "
            "64 bytes from rank 1 on lane 1");
}

TEST(Diagnosis, ARunThatEndedWell) {
  Runs runs(2);
  for (const int rank : {0, 1}) runs[rank].end = End::Done;
  const Diagnosis diagnosis = runs.diagnosis();
  EXPECT_EQ(diagnosis.verdict, RunVerdict::Ended);
  EXPECT_EQ(diagnosis.cause, "none: all 2 ranks ended well, in step 7");
}

// Rank 1 is still in backward, rank 2 is in the step after: it waits for the ranks behind.
TEST(Diagnosis, ACollectiveWaitsForThoseThatHaveNotComeSoFar) {
  Runs runs(4);
  runs.sums(0, 2);
  runs.attends(1, 1);
  runs.sums(3, 2);
  runs[2].work.step = 8;
  runs[2].work.call = 1;
  runs.waits(2, Wait::Agreement, 2);
  runs.set_now(5);
  const Diagnosis diagnosis = runs.diagnosis();
  EXPECT_THAT(diagnosis.waits_for,
              ElementsAre(ElementsAre(1), IsEmpty(), ElementsAre(0, 1, 3), ElementsAre(1)));
  EXPECT_THAT(diagnosis.causes, ElementsAre(1));
  EXPECT_THAT(diagnosis.cause,
              HasSubstr("; ranks 0, 2 and 3 wait for it: rank 0 in sum of gradients "
                        "of 4096 bytes"));
}

// A mesh of 2 x 2: ranks 0 and 1 are a step behind, and silent for longer than rank 3 is.
TEST(Diagnosis, ARankWaitsForItsGroupAlone) {
  Runs runs(4);
  for (const int rank : {0, 1}) {
    runs[rank].work.step = 6;
    runs.attends(rank, 1);
  }
  runs.attends(3, 7);
  runs.agrees(2, {2, 3}, 6.5);
  runs[2].work.call = 3;
  runs.set_now(10);
  const Diagnosis diagnosis = runs.diagnosis();
  EXPECT_THAT(diagnosis.waits_for, ElementsAre(IsEmpty(), IsEmpty(), ElementsAre(3), IsEmpty()));
  EXPECT_THAT(diagnosis.causes, ElementsAre(3));
  EXPECT_THAT(diagnosis.cause, HasSubstr("; rank 2 waits for it"));
}

// Ranks 0 and 1 of a mesh of 2 x 2 are at the same call of two groups.
TEST(Diagnosis, ARankThatWaitsForAnotherGroupIsNotBeside) {
  Runs runs(4);
  runs.agrees(0, {0, 1}, 2);
  runs.agrees(1, {1, 3}, 2);
  runs.attends(3, 1);
  runs[0].work.call = runs[1].work.call = 3;
  runs.set_now(5);
  const Diagnosis diagnosis = runs.diagnosis();
  EXPECT_THAT(diagnosis.waits_for,
              ElementsAre(ElementsAre(1), ElementsAre(3), IsEmpty(), IsEmpty()));
  EXPECT_THAT(diagnosis.causes, ElementsAre(3));
}

// The message of the other call in progress is not waited for.
TEST(Diagnosis, ARankWaitsForTheMessagesOfOneCall) {
  Runs runs(3);
  runs.receives(0, 1, 1);
  runs[0].work.call = 3;
  runs.receives(0, 2, 1);
  runs[0].wait_call = 3;
  runs.attends(1, 1);
  runs.attends(2, 1);
  runs.set_now(5);
  const Diagnosis diagnosis = runs.diagnosis();
  EXPECT_THAT(diagnosis.waits_for, ElementsAre(ElementsAre(2), IsEmpty(), IsEmpty()));
  EXPECT_THAT(diagnosis.causes, ElementsAre(2));
}

TEST(Diagnosis, ACollectiveInWhichAllRanksAre) {
  Runs runs(3);
  for (const int rank : {0, 1, 2}) runs.sums(rank, 2);
  runs.set_now(5);
  const Diagnosis diagnosis = runs.diagnosis();
  EXPECT_TRUE(diagnosis.is_cycle);
  EXPECT_EQ(diagnosis.cause,
            "no rank is late: all wait for each other for 3 s, in step 7, sum of gradients of 4096 "
            "bytes, after ring forward of call 2 began");
}

TEST(Diagnosis, ARankThatIsStoppedInACollectiveIsNamedWhicheverItIs) {
  for (int stopped = 0; stopped < 3; ++stopped) {
    Runs runs(3);
    for (const int rank : {0, 1, 2}) runs.sums(rank, 2);
    for (const int rank : {0, 1, 2}) {
      if (rank != stopped) runs.fails(rank, End::FailedWithPeers, "not done after 2 s", 4.1);
      runs.set_state(rank, ProcessState::Gone);
    }
    const Diagnosis diagnosis = runs.diagnosis();
    EXPECT_FALSE(diagnosis.is_cycle);
    EXPECT_THAT(diagnosis.causes, ElementsAre(stopped));
    EXPECT_THAT(diagnosis.cause,
                HasSubstr(fmt::format("rank {} (host h, pid {}, gone) has done nothing", stopped,
                                      100 + stopped)));
  }
}

// Rank 1 waits for its device, not for a peer.
TEST(Diagnosis, ADeviceThatHangs) {
  Runs runs(2);
  runs.attends(1, 1);
  runs.waits(1, Wait::Device, 1);
  runs.receives(0, 1, 1);
  runs.set_now(4);
  EXPECT_THAT(runs.diagnosis().causes, ElementsAre(1));
}

}  // namespace
}  // namespace armillary::recorder
