// late_device_test.cpp: the device of tests whose lanes are threads that run ops late: order,
// errors, deadlines, and runs that are dropped. Equality of results under it is tested in
// tests/equivalence.
#include "armillary/runtime/testing/late_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/plan/testing/causal_problem.h"
#include "armillary/runtime/executor.h"
#include "armillary/runtime/program_cache.h"
#include "armillary/runtime/testing/watched_communicator.h"

namespace armillary::runtime {
namespace {

/// Records the ops that ran, in their order; op 3 fails.
struct Recorded : Work {
  std::vector<int> ran;
  void run(int op) override {
    ran.push_back(op);
    if (op == 3) throw std::runtime_error("op 3 failed");
  }
};

TEST(LateDevice, RunsALaneInOrderAndLater) {
  Recorded work;
  {
    LateDevice later(1, 1000);
    EXPECT_FALSE(later.is_complete(later.start(0, work, 0)));
  }
  LateDevice device(1);
  EventHandle last;
  for (int op = 10; op < 20; ++op) last = device.start(0, work, op);
  EXPECT_TRUE(device.wait(last, 60));
  EXPECT_THAT(work.ran, testing::ElementsAre(10, 11, 12, 13, 14, 15, 16, 17, 18, 19));
}

TEST(LateDevice, GivesTheErrorToWhoLooks) {
  LateDevice device(1);
  Recorded work;
  const EventHandle fails = device.start(0, work, 3);
  const EventHandle dropped = device.start(0, work, 4);
  EXPECT_THROW(device.wait(fails, 60), std::runtime_error);
  EXPECT_THROW(device.is_complete(fails), std::runtime_error);
  device.drain(work);
  EXPECT_FALSE(device.is_complete(dropped));
  EXPECT_THAT(work.ran, testing::ElementsAre(3));
}

TEST(LateDevice, DrainsOneWorkAlone) {
  LateDevice device(1, 0.5);  // seconds: the ops of the first work would take 5
  Recorded first;
  Recorded second;
  for (int op = 10; op < 30; ++op) device.start(0, first, op);
  const EventHandle last = device.start(0, second, 1);
  device.drain(first);
  EXPECT_LT(first.ran.size(), 20U);
  EXPECT_TRUE(device.wait(last, 60));
}

std::shared_ptr<const CompiledProgram> ring_of(const comm::Communicator& comm,
                                               const char* layout = "zigzag") {
  plan::Problem problem = plan::causal_problem(comm.world(), 64);
  problem.layout = plan::parse_layout(layout);
  problem.kv_heads = problem.heads;  // Q, K and V of one shape
  return compile_cached(problem, plan::parse_strategy("ring"), comm.rank(), kernel::cpu_kernel())
      ->forward;
}

void feed_ones(Execution& run) {
  for (const plan::Tensor tensor : {plan::Tensor::K, plan::Tensor::V, plan::Tensor::Q}) {
    run.feed(tensor, at::ones(run.program().shapes[0]));
  }
}

/// A device that fails in the second op that it runs.
class FailingDevice : public LateDevice {
 public:
  FailingDevice() : LateDevice(1) {}
  EventHandle start(plan::Lane lane, Work& work, int op) override {
    return LateDevice::start(lane, started_++ == 1 ? failing_ : work, op);
  }

 private:
  struct FailingWork : Work {
    void run(int /*op*/) override { throw std::runtime_error("the device failed"); }
  };
  FailingWork failing_;
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
      comm::barrier(comm);  // a rank may have finished before the failure
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("the device failed"));
      ++told;
      throw;
    }
  };
  EXPECT_THROW(comm::run_ranks(4, body), std::runtime_error);
  EXPECT_EQ(told, 4);
}

/// A late device for inputs that are there when they are fed.
class LateOpsAlone : public LateDevice {
 public:
  using LateDevice::LateDevice;
  EventHandle caller_event() override { return nullptr; }
};

/// A device that holds all ops until it is let go.
class HeldDevice : public LateOpsAlone {
 public:
  HeldDevice() : LateOpsAlone(1) {}
  ~HeldDevice() override { held_.go = true; }
  EventHandle start(plan::Lane lane, Work& work, int op) override {
    LateDevice::start(lane, held_, 0);
    return LateDevice::start(lane, work, op);
  }
  /// Runs what is left on a lane.
  void let_go(plan::Lane lane) {
    held_.go = true;
    EXPECT_TRUE(wait(LateDevice::start(lane, held_, 0), 60));
  }

 private:
  struct GateWork : Work {
    std::atomic<bool> go = false;
    void run(int /*op*/) override {
      while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  GateWork held_;
};

/// Memory of an output. Ops that run after their run is gone would write to it.
class Untouched {
 public:
  Untouched(Execution& run, HeldDevice& device)
      : device_(device),
        memory_(at::full(run.program().shapes[run.program().program.outputs[0]], 7.0, at::kFloat)) {
    run.place_output(plan::Tensor::Out, memory_);
  }
  ~Untouched() {
    device_.let_go(plan::kCompute);
    EXPECT_TRUE(memory_.eq(7.0).all().item<bool>());
  }

 private:
  HeldDevice& device_;
  at::Tensor memory_;
};

/// Work of the caller: op t writes tensor t, which holds NaN until then.
struct Computed : Work {
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> values;

  explicit Computed(const std::vector<at::Tensor>& results) : values(results) {
    for (const at::Tensor& value : values) tensors.push_back(at::full_like(value, NAN));
  }
  void run(int op) override { tensors[op].copy_(values[op]); }
};

/// Out of a forward pass whose inputs are computed on the caller's lane while they are fed, or were
/// there before.
at::Tensor out_of(comm::Communicator& comm, const char* strategy, LateDevice* late) {
  const plan::Problem problem = plan::causal_problem(comm.world(), 64);
  const auto program =
      compile_cached(problem, plan::parse_strategy(strategy), comm.rank(), kernel::cpu_kernel())
          ->forward;
  std::vector<at::Tensor> results;
  std::vector<plan::Tensor> tensors;
  for (const int tile : program->program.inputs) {
    tensors.push_back(program->program.tiles[tile].tensor);
    at::Generator generator =
        at::detail::createCPUGenerator(std::uint64_t{10} * comm.rank() + results.size());
    results.push_back(at::randn(program->shapes[tile], generator));
  }
  Computed computed(results);
  Execution run(program, comm, {.score = {0.35}, .device = late});
  for (std::size_t t = 0; t < results.size(); ++t) {
    if (late != nullptr) late->start(LateDevice::kCallerLane, computed, static_cast<int>(t));
    run.feed(tensors[t], late == nullptr ? results[t] : computed.tensors[t]);
  }
  run.finish();
  return run.output(plan::Tensor::Out).clone();
}

TEST(LateDevice, ReadsInputsWhenTheCallerHasComputedThem) {
  for (const char* strategy : {"ring", "ulysses", "usp:u=2", "startrail:c=2", "tokenring"}) {
    comm::run_ranks(4, [&](comm::Communicator& comm) {
      const at::Tensor required = out_of(comm, strategy, nullptr);
      for (const std::uint64_t seed : {1, 2, 3}) {
        LateDevice late(seed + std::uint64_t{3} * comm.rank(), 2e-3);
        EXPECT_TRUE(at::equal(out_of(comm, strategy, &late), required)) << strategy;
      }
    });
  }
}

/// Work of the caller that ends long after the call that queues it.
struct Slow : Work {
  std::atomic<bool> ended = false;
  void run(int /*op*/) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ended = true;
  }
};

// Such work may still use the memory that has become a slot or a result of the run. With contiguous
// shards rank 1 only receives, so its message waits for no input of its own.
TEST(LateDevice, NoMessageStartsBeforeTheCallersEarlierWorkHasEnded) {
  comm::run_ranks(2, [](comm::Communicator& inner) {
    Slow work;
    WatchedCommunicator comm(inner, [&](const comm::Message&) { EXPECT_TRUE(work.ended); });
    LateDevice late(inner.rank());
    Execution run(ring_of(comm, "contiguous"), comm, {.score = {0.35}, .device = &late});
    late.start(LateDevice::kCallerLane, work, 0);
    run.advance();
    feed_ones(run);
    run.finish();
  });
}

TEST(LateDevice, WaitsForInputsUntilADeadline) {
  const auto body = [](comm::Communicator& comm) {
    LateDevice late(1, 10);
    Execution run(ring_of(comm), comm, {.score = {0.35}, .timeout_s = 0.05, .device = &late});
    feed_ones(run);
    run.finish();
  };
  EXPECT_THAT(
      [&] { comm::run_ranks(1, body); },
      testing::ThrowsMessage<Error>(testing::HasSubstr(
          "rank 0 waits for work that the caller queued before the run, not done after 0.05 s")));
}

TEST(LateDevice, ARunThatIsDroppedLeavesNothingOnIt) {
  comm::run_ranks(1, [](comm::Communicator& comm) {
    HeldDevice device;
    std::optional<Execution> run(std::in_place, ring_of(comm), comm,
                                 ExecutionOptions{.score = {0.35}, .device = &device});
    const Untouched out(*run, device);
    feed_ones(*run);  // starts its ops
    run.reset();
  });
}

TEST(LateDevice, ARunThatFailedLeavesNothingOnItAndIsOver) {
  const auto body = [](comm::Communicator& comm) {
    HeldDevice device;
    Execution run(ring_of(comm), comm, {.score = {0.35}, .timeout_s = 1e-6, .device = &device});
    const Untouched out(run, device);
    feed_ones(run);
    EXPECT_THROW(run.finish(), Error);
    EXPECT_THROW(run.finish(), CommError);
    EXPECT_THROW(run.output(plan::Tensor::Out), CommError);
    EXPECT_THROW(run.restart(comm, {.score = {0.35}}), CommError);
  };
  EXPECT_THROW(comm::run_ranks(1, body), CommError);
}

// On the CPU an op fails inside the call that starts it.
TEST(Execution, DoesNotGoOnAfterAnOpThatThrew) {
  class ThrowingDevice : public Device {
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
    ThrowingDevice device;
    Execution run(ring_of(comm), comm, {.score = {0.35}, .device = &device});
    EXPECT_THROW(feed_ones(run), std::runtime_error);
    EXPECT_THROW(run.finish(), CommError);
    EXPECT_THROW(run.output(plan::Tensor::Out), CommError);
  };
  EXPECT_THROW(comm::run_ranks(1, body), CommError);
}

/// A gate that never opens.
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
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30)) << "half a timeout";
  };
  EXPECT_THROW(comm::run_ranks(2, body), std::runtime_error);
}

/// A device on which every op waits until its rank has started a message.
class AfterAMessage : public LateDevice {
 public:
  explicit AfterAMessage(const std::atomic<int>& messages) : LateDevice(1), held_{messages} {}
  ~AfterAMessage() override = default;
  EventHandle start(plan::Lane lane, Work& work, int op) override {
    LateDevice::start(lane, held_, op);
    return LateDevice::start(lane, work, op);
  }

 private:
  struct MessageGateWork : Work {
    explicit MessageGateWork(const std::atomic<int>& messages) : messages(messages) {}
    void run(int /*op*/) override {
      for (int i = 0; i < 60000 && messages == 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_GT(messages, 0);
    }
    const std::atomic<int>& messages;
  };
  MessageGateWork held_;
};

/// A gate that is open at the 21st look.
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
    LateOpsAlone device(5, 1000);
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
