// A rank whose call fails catches the error and stays: its peers must not wait for it until a
// deadline.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>

#include "armillary/attention/attention.h"
#include "armillary/attention/testing/told_at_once.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/plan/testing/causal_problem.h"
#include "armillary/runtime/executor.h"
#include "armillary/runtime/program_cache.h"

namespace armillary::attention {
namespace {

using Body = std::function<void(comm::Communicator&)>;

/// `fails` throws on rank 1.
void expect_all_told(const Body& waits, const Body& fails, const std::string& reason) {
  const auto throws = [&](comm::Communicator& comm) { EXPECT_ANY_THROW(fails(comm)) << reason; };
  expect_told_at_once(waits, throws, reason);
}

AttentionOptions ring_options() {
  return {.mask = plan::parse_mask("causal", {8, 8}),
          .layout = plan::parse_layout("zigzag"),
          .strategy = "ring"};
}

at::Tensor four_tokens() {
  return at::ones({1, 4, 2, 8});
}

TEST(Failure, ACallThatCannotBeMadeEndsItsPeers) {
  const auto call = [](const AttentionOptions& options, const at::Tensor& x) {
    return [=](comm::Communicator& comm) { sequence_parallel_attention(x, x, x, comm, options); };
  };
  AttentionOptions bad = ring_options();
  bad.softcap = 0;
  expect_all_told(call(ring_options(), four_tokens()), call(bad, four_tokens()),
                  "rank 1 was asked for softcap=0, rank 0 for softcap=none");
  expect_all_told(call(ring_options(), four_tokens()), call(ring_options(), at::ones({1, 5, 2, 8})),
                  "5 tokens on rank 1 of 2");
}

TEST(Failure, SoDoesAReplayOfNothing) {
  const at::Tensor x = four_tokens();
  AttentionOptions options = ring_options();
  options.strategy = "ulysses";  // its replay trades tokens for heads
  const auto keep_and_replay = [&](comm::Communicator& comm, bool keeps) {
    AttentionResults first = Attention(comm, options).run(CallKind::Keep, {x, x, x});
    if (!keeps) first.kept_output = {};
    Attention(comm, options).run(CallKind::Replay, {x, x, x}, first.kept_output);
  };
  expect_all_told([&](comm::Communicator& comm) { keep_and_replay(comm, true); },
                  [&](comm::Communicator& comm) { keep_and_replay(comm, false); },
                  "nothing was kept for the replay");
}

// Autograd finds that a saved tensor was changed before the execution has begun.
TEST(Failure, SoDoesABackwardPassThatCannotBegin) {
  const auto forward_backward = [](comm::Communicator& comm, bool spoils) {
    AttentionOptions options = ring_options();
    options.sinks_H = at::zeros({2}).requires_grad_(true);
    const at::Tensor x = four_tokens();
    const at::Tensor out = sequence_parallel_attention(x, x, x, comm, options);
    if (spoils) options.sinks_H.detach().add_(1);
    out.sum().backward();
  };
  expect_all_told([&](comm::Communicator& comm) { forward_backward(comm, false); },
                  [&](comm::Communicator& comm) { forward_backward(comm, true); },
                  "modified by an inplace operation");
}

/// A kernel that throws when it attends.
class BrokenKernel : public kernel::Kernel {
  void run_attend(const kernel::Pairs&, const kernel::Inputs&, kernel::Partial&) const override {
    throw std::runtime_error("the kernel broke");
  }
  void run_attend_grad(const kernel::Pairs&, const kernel::Inputs&, const kernel::OutputGrads&,
                       kernel::InputGrads&) const override {}
};

/// Each rank needs a partial result of the other, so neither can end before the other fails.
std::shared_ptr<const runtime::CompiledProgram> forward_of(const comm::Communicator& comm,
                                                           const kernel::Kernel& kernel) {
  return runtime::compile_cached(plan::causal_problem(2, 16), plan::parse_strategy("tokenring"),
                                 comm.rank(), kernel)
      ->forward;
}

void run_to_the_end(runtime::Execution& run) {
  run.feed(plan::Tensor::K, at::ones({2, 8, 2, 8}));
  run.feed(plan::Tensor::V, at::ones({2, 8, 2, 8}));
  run.feed(plan::Tensor::Q, at::ones({2, 8, 4, 8}));
  run.finish();
}

TEST(Failure, SoDoesAnythingThatAnExecutionThrows) {
  const auto waits = [](comm::Communicator& comm) {
    runtime::Execution run(forward_of(comm, kernel::cpu_kernel()), comm, {.score = {0.35}});
    run_to_the_end(run);
  };
  const auto fails = [](const std::function<void(runtime::Execution&)>& action) {
    return [action](comm::Communicator& comm) {
      runtime::Execution run(forward_of(comm, kernel::cpu_kernel()), comm, {.score = {0.35}});
      action(run);
    };
  };
  static const BrokenKernel broken;  // programs that are compiled for it are cached
  expect_all_told(
      waits,
      [](comm::Communicator& comm) {
        runtime::Execution run(forward_of(comm, broken), comm, {.score = {0.35}});
        run_to_the_end(run);
      },
      "the kernel broke");
  const at::Tensor seven = at::ones({2, 7, 2, 8});
  expect_all_told(waits, fails([&](runtime::Execution& run) { run.feed(plan::Tensor::K, seven); }),
                  "k is Float of [2, 7, 2, 8]; rank 1 needs");
  expect_all_told(
      waits, fails([&](runtime::Execution& run) { run.place_output(plan::Tensor::Out, seven); }),
      "out is Float of [2, 7, 2, 8]; rank 1 needs");
  expect_all_told(waits, fails([](runtime::Execution& run) { run.finish(); }),
                  "finish() before k was fed");
  expect_all_told(
      waits,
      [](comm::Communicator& comm) {
        const runtime::Execution run(forward_of(comm, kernel::cpu_kernel()), comm,
                                     {.score = {0.35}, .sinks_H = at::zeros({3})});
      },
      "sinks_H is Float [3]; Float [4] is required");
}

TEST(Failure, TheTimeoutOfACallIsItsOwn) {
  std::string text;
  const auto begin = std::chrono::steady_clock::now();
  const auto body = [&](comm::Communicator& comm) {
    if (comm.rank() == 1) return;
    AttentionOptions options = ring_options();
    options.timeout_s = 0.1;
    const at::Tensor x = four_tokens();
    try {
      sequence_parallel_attention(x, x, x, comm, options);
    } catch (const CommError& error) {
      text = error.what();
    }
  };
  EXPECT_THROW(comm::run_ranks(2, body, {.timeout_s = 100}), CommError);
  EXPECT_THAT(text, testing::ContainsRegex("not done after [0-9.]+ s"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(50));
}

}  // namespace
}  // namespace armillary::attention
