// gate_test.cpp: the gate between a run and the agreement of ranks: no message starts and no run
// ends before it is open, but the own block is computed meanwhile.
#include "armillary/runtime/gate.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/plan/testing/causal_problem.h"
#include "armillary/runtime/executor.h"
#include "armillary/runtime/program_cache.h"
#include "armillary/runtime/testing/watched_communicator.h"

namespace armillary::runtime {
namespace {

using plan::Tensor;

/// A gate that opens when the test says so, or when a run waits for it.
class TestGate : public Gate {
 public:
  bool is_open() override { return open; }
  void wait() override {
    ++waits;
    open = true;
  }
  bool open = false;
  int waits = 0;
};

std::shared_ptr<const CompiledProgram> forward_of(const comm::Communicator& comm) {
  return compile_cached(plan::causal_problem(comm.world(), 16), plan::parse_strategy("ring"),
                        comm.rank(), kernel::cpu_kernel())
      ->forward;
}

/// Feeds the same numbers in every run, so results can be compared.
void feed_all(Execution& run) {
  const CompiledProgram& program = run.program();
  for (const int tile : program.program.inputs) {
    const at::Tensor values = at::arange(c10::multiply_integers(program.shapes[tile]), at::kFloat);
    run.feed(program.program.tiles[tile].tensor, (values * 0.37).sin().view(program.shapes[tile]));
  }
}

/// Whether a run has attended any pair: then a largest logit is finite.
bool has_attended(const Execution& run) {
  return run.max_logit().isfinite().any().item<bool>();
}

TEST(Gate, MessagesWaitForItAndTheOwnBlockDoesNot) {
  comm::run_ranks(2, [](comm::Communicator& inner) {
    int messages = 0;
    WatchedCommunicator comm(inner, [&](const comm::Message&) { ++messages; });
    TestGate gate;
    const ExecutionOptions options{.score = {.scale = 0.35}, .max_logit = true, .gate = &gate};
    Execution run(forward_of(comm), comm, options);
    feed_all(run);
    run.advance();
    EXPECT_EQ(messages, 0);
    EXPECT_TRUE(has_attended(run));
    gate.open = true;
    run.advance();
    EXPECT_GE(messages, 4) << "K, V, there and here";
    run.finish();
    EXPECT_EQ(gate.waits, 0);

    Execution without(forward_of(comm), comm, {.score = {.scale = 0.35}});
    feed_all(without);
    without.finish();
    EXPECT_TRUE(at::equal(run.output(Tensor::Out), without.output(Tensor::Out)));
  });
}

// This holds for one rank too, which sends nothing.
TEST(Gate, NoRunEndsBeforeItIsOpen) {
  for (const int world : {1, 2}) {
    comm::run_ranks(world, [](comm::Communicator& comm) {
      TestGate gate;
      Execution run(forward_of(comm), comm, {.score = {.scale = 0.35}, .gate = &gate});
      feed_all(run);
      EXPECT_EQ(gate.waits, 0);
      run.finish();
      EXPECT_EQ(gate.waits, 1);
      gate.open = false;
      run.restart(comm, {.score = {.scale = 0.35}});
      feed_all(run);
      run.finish();
      EXPECT_EQ(gate.waits, 1) << "another run's gate";
    });
  }
}

class FailingGate : public Gate {
 public:
  bool is_open() override { fail<InvalidArgument>("the gate stays shut"); }
  void wait() override {}
};

TEST(Gate, OneThatFailsEndsAllRanks) {
  std::atomic<int> told = 0;
  const auto body = [&](comm::Communicator& comm) {
    FailingGate shut;
    TestGate gate;
    gate.open = true;
    try {
      Execution run(
          forward_of(comm), comm,
          {.score = {.scale = 0.35}, .gate = comm.rank() == 0 ? static_cast<Gate*>(&shut) : &gate});
      feed_all(run);
      run.finish();
    } catch (const Error& error) {
      told += std::string(error.what()).find("the gate stays shut") != std::string::npos;
    }
  };
  EXPECT_THROW(comm::run_ranks(2, body, {.timeout_s = 20}), CommError);
  EXPECT_EQ(told, 2);
}

}  // namespace
}  // namespace armillary::runtime
