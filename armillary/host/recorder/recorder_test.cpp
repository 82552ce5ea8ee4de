// recorder_test.cpp: the files that a recorder leaves: their values, the ring of the last ops, and
// processes that are stopped or killed at any moment while another one reads.
#include "armillary/host/recorder/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "armillary/core/process_stat.h"
#include "armillary/host/recorder/diagnosis.h"
#include "armillary/host/recorder/reader.h"
#include "armillary/host/recorder/testing/run_folder.h"

namespace armillary::recorder {
namespace {

using plan::OpKind;
using plan::Pass;

TEST(Recorder, KeepsWhatItIsTold) {
  const RunFolder folder;
  {
    Recorder recorder(folder.path(), {.world = 4, .rank = 3, .program = "0.1.0"});
    const std::uint8_t words = recorder.words(plan::attention_words());
    EXPECT_EQ(words, 0);
    recorder.begin_step(17);
    recorder.set_activity({.name = "forward"});
    recorder.begin_call("usp:u=2", words, static_cast<int>(Pass::Forward));
    recorder.begin_call("usp:u=2", words, static_cast<int>(Pass::Backward));
    recorder.finish(recorder.start({.kind = OpKind::AttendGrad, .plan_step = 2, .index = 8}));
    recorder.start({.kind = OpKind::Recv,
                    .lane = 5,
                    .plan_step = 3,
                    .index = 9,
                    .peer = 2,
                    .bytes = std::int64_t{1} << 40});
    recorder.wait(Wait::Messages);
  }
  const Flight flight = read_flight(folder.file_of(3));
  EXPECT_EQ(std::filesystem::path(folder.file_of(3)).filename(), "rank-0003.bin");
  EXPECT_EQ(flight.world, 4);
  EXPECT_EQ(flight.rank, 3);
  EXPECT_EQ(flight.host, this_host());
  EXPECT_EQ(flight.pid, getpid());
  EXPECT_EQ(flight.program, "0.1.0");
  EXPECT_EQ(flight.work.step, 17);
  EXPECT_EQ(flight.work.call, 2);
  EXPECT_EQ(flight.work.pass, "backward");
  EXPECT_EQ(flight.work.strategy, "usp:u=2");
  EXPECT_EQ(flight.work.activity, "forward");
  EXPECT_EQ(flight.work.activity_number, 1);
  EXPECT_EQ(flight.wait, Wait::Messages);
  EXPECT_EQ(flight.end, End::Running);
  EXPECT_EQ(flight.torn, 0);
  EXPECT_EQ(state_of(flight.host, flight.pid, flight.process_start), ProcessState::Alive);
  // The ops, with times in their order.
  ASSERT_EQ(flight.ops.size(), 2);
  const RecordedOp& attend = flight.ops[0];
  EXPECT_TRUE(attend.complete);
  EXPECT_EQ(attend.op.kind, OpKind::AttendGrad);
  EXPECT_EQ(attend.kind, "attend_grad");
  EXPECT_LE(flight.base_monotonic_ns, attend.start_ns);
  EXPECT_LE(attend.start_ns, attend.end_ns);
  const RecordedOp& receive = flight.ops[1];
  EXPECT_FALSE(receive.complete);
  EXPECT_EQ(receive.kind, "recv");
  EXPECT_EQ(receive.number, 1);
  EXPECT_EQ(receive.step, 17);
  EXPECT_EQ(receive.call, 2);
  EXPECT_EQ(receive.pass, "backward");
  EXPECT_EQ(receive.op.plan_step, 3);
  EXPECT_EQ(receive.op.index, 9);
  EXPECT_EQ(receive.op.lane, 5);
  EXPECT_EQ(receive.op.peer, 2);
  EXPECT_EQ(receive.op.bytes, std::int64_t{1} << 40);
  EXPECT_LE(attend.end_ns, receive.start_ns);
  EXPECT_LE(receive.start_ns, flight.wait_since_ns);
  EXPECT_EQ(flight.last_event_ns(), flight.wait_since_ns);
}

TEST(Recorder, CountsCallsAndActivitiesInAStep) {
  const RunFolder folder;
  Recorder recorder(folder.path(), {});
  const std::uint8_t words = recorder.words(plan::attention_words());
  for (const std::int64_t step : {1, 2}) {
    recorder.begin_step(step);
    for (int i = 0; i < 3; ++i) {
      recorder.set_activity({.name = "sum", .bytes = 8, .collective = true});
      recorder.begin_call("ring", words, static_cast<int>(Pass::Replay));
    }
  }
  recorder.wait(Wait::Proof);
  recorder.resume();
  const Flight flight = read_flight(folder.file_of(0));
  EXPECT_EQ(flight.work.step, 2);
  EXPECT_EQ(flight.work.call, 3);
  EXPECT_EQ(flight.work.activity_number, 3);
  EXPECT_EQ(flight.work.activity_bytes, 8);
  EXPECT_TRUE(flight.work.collective);
  EXPECT_EQ(flight.wait, Wait::None);
}

// Two calls are in progress: ops and waits of the first come after the second has begun.
TEST(Recorder, AnOpIsOneOfItsCall) {
  const RunFolder folder;
  Recorder recorder(folder.path(), {.world = 2});
  const std::uint8_t words = recorder.words(plan::attention_words());
  recorder.begin_step(3);
  const BegunCall first = recorder.begin_call("ring", words, static_cast<int>(Pass::Forward));
  const BegunCall second = recorder.begin_call("usp:u=2", words, static_cast<int>(Pass::Backward));
  recorder.start({.kind = OpKind::Recv, .index = 4, .peer = 1}, second, monotonic_ns());
  recorder.start({.kind = OpKind::Recv, .index = 5, .peer = 1}, first, monotonic_ns());
  recorder.wait(Wait::Messages, {.call = first.number});
  const Flight flight = read_flight(folder.file_of(0));
  ASSERT_EQ(flight.ops.size(), 2U);
  EXPECT_EQ(flight.ops[0].call, 2);
  EXPECT_EQ(flight.ops[0].pass, "backward");
  EXPECT_EQ(flight.ops[1].call, 1);
  EXPECT_EQ(flight.ops[1].pass, "forward");
  EXPECT_EQ(flight.ops[1].step, 3);
  EXPECT_EQ(flight.wait_call, 1);
  ASSERT_EQ(messages_of(flight).size(), 1U);
  EXPECT_EQ(place_of(flight),
            "step 3, ring forward of call 1, plan step 0, recv (op 5) of 0 bytes from rank 1 on "
            "lane 0");
}

TEST(Recorder, KeepsTheRanksOfGroups) {
  const RunFolder folder;
  Recorder recorder(folder.path(), {.world = 70, .rank = 1});
  std::vector<int> all(70);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(recorder.group(all), 0);
  EXPECT_EQ(recorder.group(std::vector{69, 1}), 1);
  EXPECT_EQ(recorder.group(std::vector{0, 1}), 2);
  EXPECT_EQ(recorder.group(std::vector{1, 69}), 1) << "the same ranks";
  for (int other = 2; other < 16; ++other) recorder.group(std::vector{1, other});
  EXPECT_EQ(recorder.group(std::vector{1, 16}), 0) << "as all ranks";
  recorder.set_activity({.name = "sum", .collective = true, .group = 2});
  recorder.wait(Wait::Proof, {.group = 1});
  const Flight flight = read_flight(folder.file_of(1));
  EXPECT_EQ(*flight.ranks_of(flight.wait_group), (std::vector{1, 69}));
  EXPECT_EQ(*flight.ranks_of(flight.work.group), (std::vector{0, 1}));
  EXPECT_EQ(wait_text(flight), "all 2 ranks of its group to prove the plan");
  recorder.wait(Wait::Proof);
  EXPECT_EQ(wait_text(read_flight(folder.file_of(1))), "all ranks to prove the plan");
}

TEST(Recorder, EarlierWorkIsKept) {
  const RunFolder folder;
  Recorder recorder(folder.path(), {});
  for (int step = 1; step <= 40; ++step) recorder.begin_step(step);
  Flight flight = read_flight(folder.file_of(0));
  EXPECT_EQ(flight.work.step, 40);
  ASSERT_EQ(flight.earlier_work.size(), 15);
  EXPECT_EQ(flight.earlier_work.front().step, 25);
  const std::int64_t before = flight.earlier_work[10].since_ns;
  flight.rewind_to(before);
  EXPECT_EQ(flight.work.since_ns, before);
  EXPECT_EQ(flight.work.step, 35);
}

TEST(Recorder, TheFirstEndCounts) {
  const RunFolder folder;
  Recorder recorder(folder.path(), {});
  recorder.fail(End::FailedWithPeers, std::string(2000, 'x'));
  recorder.end();
  const Flight flight = read_flight(folder.file_of(0));
  EXPECT_EQ(flight.end, End::FailedWithPeers);
  EXPECT_EQ(flight.reason, std::string(511, 'x'));
}

TEST(Recorder, AWaitThatThrowsIsLeftAsOne) {
  const RunFolder folder;
  Recorder recorder(folder.path(), {});
  EXPECT_EQ(while_waiting(&recorder, Wait::Device, [] { return 5; }), 5);
  EXPECT_EQ(while_waiting(nullptr, Wait::Device, [] { return 6; }), 6);
  EXPECT_EQ(read_flight(folder.file_of(0)).wait, Wait::None);
  EXPECT_THROW(while_waiting(&recorder, Wait::Proof, [] { throw std::runtime_error("late"); }),
               std::runtime_error);
  EXPECT_EQ(read_flight(folder.file_of(0)).wait, Wait::Proof);
}

// The ring goes around: the last ops are there, and an op that was replaced is not ended any more.
TEST(Recorder, TheLastThousandOpsAreKept) {
  const RunFolder folder;
  Recorder recorder(folder.path(), {});
  constexpr int kOps = 2500;
  recorder.words(plan::attention_words());
  const std::uint64_t first = recorder.start({.kind = OpKind::Attend, .index = 0});
  for (int i = 1; i < kOps; ++i) recorder.start({.kind = OpKind::Attend, .index = i});
  recorder.finish(first);
  recorder.finish(kOps - 1);
  const Flight flight = read_flight(folder.file_of(0));
  ASSERT_EQ(flight.ops.size(), kOpsKept);
  for (int i = 0; i < kOpsKept; ++i) {
    ASSERT_EQ(flight.ops[i].number, kOps - kOpsKept + i);
    ASSERT_EQ(flight.ops[i].op.index, kOps - kOpsKept + i);
    ASSERT_EQ(flight.ops[i].complete, i == kOpsKept - 1);
  }
}

TEST(Recorder, NamesOpsOfEveryVocabulary) {
  static constexpr plan::KindWord kKinds[] = {plan::kSendWord, plan::kRecvWord, {.name = "put"}};
  std::vector<plan::Vocabulary> others(kWordsKept, {.name = "pages", .kinds = kKinds});
  const RunFolder folder;
  Recorder recorder(folder.path(), {});
  EXPECT_EQ(recorder.words(plan::attention_words()), 0);
  for (std::uint8_t w = 1; w < kWordsKept; ++w) EXPECT_EQ(recorder.words(others[w]), w);
  EXPECT_EQ(recorder.words(others[2]), 2);
  EXPECT_THROW(recorder.words(others[0]), InternalError);
  recorder.start({.kind = plan::Kind(2), .words = 3});
  recorder.start({.kind = plan::Kind(2), .words = 0});
  const Flight flight = read_flight(folder.file_of(0));
  ASSERT_EQ(flight.ops.size(), 2U);
  EXPECT_EQ(describe(flight.ops[0]), "put (op 0)");
  EXPECT_EQ(describe(flight.ops[1]), "attend (op 0)");
}

// A process that still writes to the file of an earlier run does not disturb the new one.
TEST(Recorder, AnOlderFileIsReplaced) {
  const RunFolder folder;
  Recorder older(folder.path(), {});
  older.words(plan::attention_words());
  older.start({.kind = OpKind::Attend, .index = 1});
  Recorder newer(folder.path(), {});
  newer.words(plan::attention_words());
  older.start({.kind = OpKind::Attend, .index = 2});
  newer.start({.kind = OpKind::Attend, .index = 3});
  const Flight flight = read_flight(folder.file_of(0));
  ASSERT_EQ(flight.ops.size(), 1);
  EXPECT_EQ(flight.ops[0].op.index, 3);
}

// A run that is refused before its first step leaves the record of the one before, also after
// another one that was killed as early.
TEST(Recorder, AnOlderFileStaysUntilTheRunBegins) {
  const RunFolder folder;
  Recorder(folder.path(), {.world = 7}).begin_step(1);
  {
    const Recorder refused(folder.path(), {.world = 8});
    EXPECT_EQ(read_flight(folder.file_of(0)).world, 8);
  }
  EXPECT_EQ(read_flight(folder.file_of(0)).world, 7);
  const pid_t child = fork();
  if (child == 0) {
    const Recorder killed(folder.path(), {.world = 9});
    raise(SIGKILL);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(read_flight(folder.file_of(0)).world, 9);
  { const Recorder refused(folder.path(), {.world = 8}); }
  EXPECT_EQ(read_flight(folder.file_of(0)).world, 7);

  {
    Recorder recorder(folder.path(), {.world = 8});
    recorder.begin_call("ring", recorder.words(plan::attention_words()), 0);
  }
  EXPECT_EQ(read_flight(folder.file_of(0)).world, 8);
  const std::filesystem::directory_iterator files(folder.path() + "/flight");
  EXPECT_EQ(std::distance(files, {}), 1) << "nothing else is left";
}

/// Every value of an op follows from its index, so a mixture of two ops shows.
StartedOp op_with(int index) {
  return {.kind = OpKind::Send,
          .lane = static_cast<std::int16_t>(index % 7),
          .plan_step = index + 1,
          .index = index,
          .peer = index % 3,
          .bytes = std::int64_t{5} * index};
}

void expect_unmixed(const Flight& flight) {
  for (const RecordedOp& op : flight.ops) {
    const StartedOp whole = op_with(op.op.index);
    ASSERT_EQ(op.op.lane, whole.lane);
    ASSERT_EQ(op.op.plan_step, whole.plan_step);
    ASSERT_EQ(op.op.peer, whole.peer);
    ASSERT_EQ(op.op.bytes, whole.bytes);
    ASSERT_EQ(op.number, static_cast<std::uint64_t>(op.op.index));
    ASSERT_TRUE(!op.complete || op.start_ns <= op.end_ns);
  }
}

TEST(Recorder, IsReadWhileItWrites) {
  const RunFolder folder;
  Recorder recorder(folder.path(), {.world = 3});
  recorder.words(plan::attention_words());
  std::jthread writer([&](const std::stop_token& stop) {
    for (int i = 0; !stop.stop_requested(); ++i) recorder.finish(recorder.start(op_with(i)));
  });
  int before = -1;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (int reads = 0; reads < 200 && std::chrono::steady_clock::now() < end;) {
    const Flight flight = read_flight(folder.file_of(0));
    expect_unmixed(flight);
    if (flight.ops.empty()) continue;  // the writer may start late
    EXPECT_LE(before, flight.ops.back().op.index);
    before = flight.ops.back().op.index;
    ++reads;
  }
  EXPECT_GT(before, 0);
}

/// Runs `child` in a process of its own, which tells by a byte that it has come so far; then kills
/// it. Returns its pid.
pid_t killed(const std::function<void(int told)>& child) {
  std::array<int, 2> pipes{};
  EXPECT_EQ(pipe(pipes.data()), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(30);
    child(pipes[1]);
    while (true) pause();
  }
  char byte = 0;
  EXPECT_EQ(read(pipes[0], &byte, 1), 1);
  EXPECT_EQ(kill(pid, SIGKILL), 0);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status));
  close(pipes[0]);
  close(pipes[1]);
  return pid;
}

void tell(int pipe_end) {
  if (write(pipe_end, "!", 1) != 1) std::_Exit(1);
}

TEST(Recorder, TheFileOutlivesAProcessThatIsKilled) {
  const RunFolder folder;
  const pid_t pid = killed([&](int told) {
    Recorder recorder(folder.path(), {.world = 4, .rank = 2});
    recorder.words(plan::attention_words());
    recorder.begin_step(5);
    for (int i = 0; i < 1234; ++i)
      recorder.finish(recorder.start({.kind = OpKind::Attend, .index = i}));
    recorder.start({.kind = OpKind::Recv, .index = 1234, .peer = 1, .bytes = 99});
    recorder.wait(Wait::Messages);
    tell(told);
    while (true) pause();
  });
  const Flight flight = read_flight(folder.file_of(2));
  EXPECT_EQ(flight.pid, pid);
  EXPECT_EQ(flight.work.step, 5);
  EXPECT_EQ(flight.end, End::Running);
  EXPECT_EQ(flight.wait, Wait::Messages);
  EXPECT_EQ(state_of(flight.host, flight.pid, flight.process_start), ProcessState::Gone);
  ASSERT_EQ(flight.ops.size(), kOpsKept);
  EXPECT_EQ(flight.ops.back().op.index, 1234);
  EXPECT_EQ(flight.ops.back().op.peer, 1);
  EXPECT_FALSE(flight.ops.back().complete);
}

TEST(Recorder, AtAnyMoment) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    const RunFolder folder;
    killed([&](int told) {
      Recorder recorder(folder.path(), {.world = 3});
      recorder.words(plan::attention_words());
      for (int i = 0;; ++i) {
        recorder.finish(recorder.start(op_with(i)));
        if (i == 1000 + 37 * repeat) tell(told);
      }
    });
    const Flight flight = read_flight(folder.file_of(0));
    expect_unmixed(flight);
    EXPECT_LE(flight.torn, 1);
    EXPECT_EQ(flight.ops.size() + flight.torn, kOpsKept);
    EXPECT_EQ(flight.ops.back().number, flight.ops.front().number + flight.ops.size() - 1);
  }
}

TEST(Recorder, AProcessThatIsStopped) {
  const RunFolder folder;
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(30);
    while (true) pause();
  }
  const std::int64_t start = process_start_of(pid);
  EXPECT_EQ(state_of(this_host(), pid, start), ProcessState::Alive);
  EXPECT_EQ(state_of("elsewhere", pid, start), ProcessState::Unknown);
  EXPECT_EQ(state_of(this_host(), pid, start + 1), ProcessState::Gone);  // another with that pid
  kill(pid, SIGSTOP);
  waitpid(pid, nullptr, WUNTRACED);
  EXPECT_EQ(state_of(this_host(), pid, start), ProcessState::Stopped);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  EXPECT_EQ(state_of(this_host(), pid, start), ProcessState::Gone);
}

}  // namespace
}  // namespace armillary::recorder
