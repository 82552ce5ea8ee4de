#include "armillary/runtime/late_device.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/plan/causal_problem.h"
#include "armillary/runtime/executor.h"
#include "armillary/runtime/program_cache.h"
#include "armillary/runtime/watched_communicator.h"

namespace armillary::runtime {
namespace {

/// Keeps the ops that ran, in their order; op 3 fails.
struct Recorded : Work {
  std::vector<int> ran;
  void run(int op) override {
    ran.push_back(op);
    if (op == 3) throw std::runtime_error("op 3 failed");
  }
};

TEST(LateDevice, RunsALaneInOrderAndLater) {
  LateDevice device(1);
  Recorded work;
  EXPECT_FALSE(device.done(device.start(0, work, 0)));
  EventHandle last;
  for (int op = 10; op < 20; ++op) last = device.start(0, work, op);
  EXPECT_TRUE(device.wait(last, 10));
  EXPECT_THAT(work.ran, testing::ElementsAre(0, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19));
}

TEST(LateDevice, GivesTheErrorToWhoLooks) {
  LateDevice device(1);
  Recorded work;
  const EventHandle fails = device.start(0, work, 3);
  const EventHandle dropped = device.start(0, work, 4);
  EXPECT_THROW(device.wait(fails, 10), std::runtime_error);
  EXPECT_THROW(device.done(fails), std::runtime_error);
  device.drain(work);
  EXPECT_FALSE(device.done(dropped));
  EXPECT_THAT(work.ran, testing::ElementsAre(3));
}

TEST(LateDevice, DrainsOneWorkAlone) {
  LateDevice device(1);
  Recorded first;
  Recorded second;
  for (int op = 10; op < 30; ++op) device.start(0, first, op);
  const EventHandle last = device.start(0, second, 1);
  device.drain(first);
  EXPECT_LT(first.ran.size(), 20U);
  EXPECT_TRUE(device.wait(last, 10));
}

std::shared_ptr<const CompiledProgram> ring_of(const comm::Communicator& comm) {
  plan::Problem problem = plan::causal_problem(comm.world(), 64);
  problem.kv_heads = problem.heads;  // Q, K and V of one shape
  return compile_cached(problem, plan::parse_strategy("ring"), comm.rank(), kernel::cpu_kernel())
      ->forward;
}

void feed_ones(Execution& run) {
  for (const plan::Tensor tensor : {plan::Tensor::K, plan::Tensor::V, plan::Tensor::Q}) {
    run.feed(tensor, at::ones(run.program().shapes[0]));
  }
}

/// Fails in the second op that it runs.
class FailingDevice : public LateDevice {
 public:
  FailingDevice() : LateDevice(1) {}
  EventHandle start(plan::Lane lane, Work& work, int op) override {
    return LateDevice::start(lane, started_++ == 1 ? failing_ : work, op);
  }

 private:
  struct Failing : Work {
    void run(int /*op*/) override { throw std::runtime_error("the device failed"); }
  };
  Failing failing_;
  int started_ = 0;
};

TEST(LateDevice, AnErrorOfAnOpEndsAllRanks) {
  std::atomic<int> told = 0;
  const auto body = [&](comm::Communicator& comm) {
    FailingDevice fails;
    LateDevice late(2);
    Device* const device = comm.rank() == 1 ? static_cast<Device*>(&fails) : &late;
    Execution run(ring_of(comm), comm, {.score = {0.35}, .device = device});
    try {
      feed_ones(run);
      run.finish();
      comm::barrier(comm);  // of a rank that had finished before
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("the device failed"));
      ++told;
      throw;
    }
  };
  EXPECT_THROW(comm::run_ranks(4, body), std::runtime_error);
  EXPECT_EQ(told, 4);
}

constexpr double kLongDelay = 0.1;  // seconds, at most

/// Memory of an output, which ops would write that are left behind.
class Untouched {
 public:
  explicit Untouched(Execution& run)
      : memory_(at::full(run.program().shapes[run.program().program.outputs[0]], 7.0, at::kFloat)) {
    run.place_output(plan::Tensor::Out, memory_);
  }
  ~Untouched() {
    std::this_thread::sleep_for(std::chrono::duration<double>(2 * kLongDelay));
    EXPECT_TRUE(memory_.eq(7.0).all().item<bool>());
  }

 private:
  at::Tensor memory_;
};

TEST(LateDevice, ARunThatIsDroppedLeavesNothingOnIt) {
  comm::run_ranks(1, [](comm::Communicator& comm) {
    LateDevice device(1, kLongDelay);
    std::optional<Execution> run(std::in_place, ring_of(comm), comm,
                                 ExecutionOptions{.score = {0.35}, .device = &device});
    const Untouched out(*run);
    feed_ones(*run);  // starts its ops
    run.reset();
  });
}

TEST(LateDevice, ARunThatFailedLeavesNothingOnItAndIsOver) {
  const auto body = [](comm::Communicator& comm) {
    LateDevice device(1, kLongDelay);
    Execution run(ring_of(comm), comm, {.score = {0.35}, .timeout_s = 1e-6, .device = &device});
    const Untouched out(run);
    feed_ones(run);
    EXPECT_THROW(run.finish(), Error);
    EXPECT_THROW(run.finish(), CommError);
    EXPECT_THROW(run.output(plan::Tensor::Out), CommError);
    EXPECT_THROW(run.restart(comm, {.score = {0.35}}), CommError);
  };
  EXPECT_THROW(comm::run_ranks(1, body), CommError);
}

// An op on the CPU fails inside the call that starts it.
TEST(Execution, DoesNotGoOnAfterAnOpThatThrew) {
  class Failing : public Device {
   public:
    at::Device place() const override { return at::kCPU; }
    EventHandle start(plan::Lane /*lane*/, Work& /*work*/, int /*op*/) override {
      throw std::runtime_error("the device failed");
    }
    void drain(const Work& /*work*/) noexcept override {}

   private:
    bool is_done(const Event& /*event*/) override { return true; }
    bool wait_for(const Event& /*event*/, double /*seconds*/) override { return true; }
  };
  const auto body = [](comm::Communicator& comm) {
    Failing device;
    Execution run(ring_of(comm), comm, {.score = {0.35}, .device = &device});
    EXPECT_THROW(feed_ones(run), std::runtime_error);
    EXPECT_THROW(run.finish(), CommError);
    EXPECT_THROW(run.output(plan::Tensor::Out), CommError);
  };
  EXPECT_THROW(comm::run_ranks(1, body), CommError);
}

/// Does not open.
struct Shut : Gate {
  bool is_open() override { return false; }
  void wait() override { ADD_FAILURE() << "an op is under way"; }
};

TEST(LateDevice, ARankThatWaitsForItHearsOfAFailure) {
  using Clock = std::chrono::steady_clock;
  const auto body = [](comm::Communicator& comm) {
    if (comm.rank() == 1) throw std::runtime_error("rank 1 is ill");
    LateDevice device(5, 1000);
    Shut gate;
    Execution run(ring_of(comm), comm, {.score = {0.35}, .device = &device, .gate = &gate});
    const auto begin = Clock::now();
    EXPECT_THROW(
        {
          feed_ones(run);
          run.finish();
        },
        CommError);
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  };
  EXPECT_THROW(comm::run_ranks(2, body), std::runtime_error);
}

/// Ops wait for a message of the rank.
class AfterAMessage : public LateDevice {
 public:
  explicit AfterAMessage(const std::atomic<int>& messages) : LateDevice(1), held_{messages} {}
  ~AfterAMessage() override = default;
  EventHandle start(plan::Lane lane, Work& work, int op) override {
    LateDevice::start(lane, held_, op);
    return LateDevice::start(lane, work, op);
  }

 private:
  struct Held : Work {
    explicit Held(const std::atomic<int>& messages) : messages(messages) {}
    void run(int /*op*/) override {
      for (int i = 0; i < 10000 && messages == 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_GT(messages, 0);
    }
    const std::atomic<int>& messages;
  };
  Held held_;
};

/// Opens when it has been looked at some times.
struct OpensSoon : Gate {
  int looks = 0;
  bool is_open() override { return ++looks > 20; }
  void wait() override {
    while (!is_open()) std::this_thread::yield();
  }
};

TEST(LateDevice, MessagesStartWhileItRunsAnOp) {
  comm::run_ranks(2, [](comm::Communicator& inner) {
    std::atomic<int> messages = 0;
    WatchedCommunicator comm(inner, [&](const comm::Message&) { ++messages; });
    AfterAMessage device(messages);
    OpensSoon gate;
    Execution run(ring_of(comm), comm, {.score = {0.35}, .device = &device, .gate = &gate});
    feed_ones(run);
    run.finish();
  });
}

TEST(LateDevice, AWaitForItHasADeadline) {
  const auto body = [](comm::Communicator& comm) {
    LateDevice device(5, 1000);
    Execution run(ring_of(comm), comm, {.score = {0.35}, .timeout_s = 0.1, .device = &device});
    feed_ones(run);
    run.finish();
  };
  try {
    comm::run_ranks(1, body);
    ADD_FAILURE() << "it does not wait for 1,000 s";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "executor: rank 0 waits for attend_all of op 0, not done after 0.1 s");
  }
}

}  // namespace
}  // namespace armillary::runtime
