#include "armillary/runtime/late_device.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/plan/causal_problem.h"
#include "armillary/runtime/executor.h"
#include "armillary/runtime/program_cache.h"

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
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("the device failed"));
      ++told;
      throw;
    }
  };
  EXPECT_THROW(comm::run_ranks(4, body), std::runtime_error);
  EXPECT_EQ(told, 4);
}

TEST(LateDevice, ARunThatIsDroppedLeavesNothingOnIt) {
  comm::run_ranks(1, [](comm::Communicator& comm) {
    LateDevice device(1, 0.05);
    {
      Execution run(ring_of(comm), comm, {.score = {0.35}, .device = &device});
      feed_ones(run);  // starts its ops
    }
    Recorded work;
    EXPECT_TRUE(device.wait(device.start(plan::kCompute, work, 1), 10));
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
