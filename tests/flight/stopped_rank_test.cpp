// Real runs in which a rank stops: the flight files name it, with its op, and the errors of the
// other ranks name the message that they waited for.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/comm/local.h"
#include "armillary/comm/mesh.h"
#include "armillary/core/error.h"
#include "armillary/host/recorder/diagnosis.h"
#include "armillary/host/recorder/testing/run_folder.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/plan/testing/causal_problem.h"
#include "armillary/runtime/executor.h"
#include "armillary/runtime/program_cache.h"
#include "armillary/runtime/rank.h"
#include "armillary/train/testing/small_training.h"
#include "armillary/train/trainer.h"

namespace armillary::flight {
namespace {

using recorder::Diagnosis;
using recorder::Flight;
using recorder::RecordedRun;
using recorder::RunFolder;
using recorder::RunVerdict;
using testing::AllOf;
using testing::ContainsRegex;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A kernel that does something first, before it attends for the first time.
class InterruptedKernel : public kernel::Kernel {
 public:
  explicit InterruptedKernel(std::function<void()> interrupt) : interrupt_(std::move(interrupt)) {}

 private:
  void run_attend(const kernel::Pairs& pairs, const kernel::Inputs& inputs,
                  kernel::Partial& carry) const override {
    if (++calls_ == 1) interrupt_();
    kernel::cpu_kernel().attend(pairs, inputs, carry);
  }
  void run_attend_grad(const kernel::Pairs&, const kernel::Inputs&, const kernel::OutputGrads&,
                       kernel::InputGrads&) const override {}

  std::function<void()> interrupt_;
  mutable int calls_ = 0;
};

/// Ranks of run_recorded() that have heard of a failure.
std::atomic<int>& told_ranks() {
  static std::atomic<int> count = 0;
  return count;
}

/// Sleeps until a rank has heard of a failure, and for half a second more; a test failure after a
/// minute. It hardly uses its core, as a rank that does would be one that computes.
void sleep_until_told() {
  for (int i = 0; i < 1200 && told_ranks() == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_GT(told_ranks().load(), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
}

/// Ring attention forward on 4 recorded ranks, of which rank 2 has that kernel. Returns the text of
/// the error of each rank; empty for none.
std::vector<std::string> run_recorded(const RunFolder& folder, const kernel::Kernel& of_rank_2) {
  constexpr int kWorld = 4;
  std::vector<std::string> errors(kWorld);
  told_ranks() = 0;
  const auto body = [&](comm::Communicator& comm) {
    runtime::Rank& rank = runtime::Rank::of(comm);
    rank.record_in(folder.path());
    rank.recorder()->begin_step(17);
    plan::Problem problem = plan::causal_problem(kWorld, 32);
    problem.mask = plan::parse_mask("full", {32, 32});
    const kernel::Kernel& kernel = comm.rank() == 2 ? of_rank_2 : kernel::cpu_kernel();
    const auto programs =
        runtime::compile_cached(problem, plan::parse_strategy("ring"), comm.rank(), kernel);
    try {
      runtime::Execution run(programs->forward, comm,
                             {.score = {0.35}, .recorder = rank.recorder()});
      for (const int tile : programs->forward->program.inputs) {
        run.feed(programs->forward->program.tiles[tile].tensor,
                 at::ones(programs->forward->shapes[tile]));
      }
      run.finish();
      rank.recorder()->end();
    } catch (const CommError& error) {
      errors[comm.rank()] = error.what();
      rank.recorder()->fail(recorder::End::FailedWithPeers, error.what());
      ++told_ranks();
    } catch (const std::exception& error) {
      errors[comm.rank()] = error.what();
      rank.recorder()->fail(recorder::End::Failed, error.what());
    }
  };
  try {
    comm::run_ranks(kWorld, body, {.timeout_s = 1});
  } catch (const CommError&) {  // the group failed; each rank has told its error
  }
  return errors;
}

// Rank 2 stops until another has missed its deadline. Rank 0 ends without the others if rank 2 had
// sent on the last tile for it when it stopped.
TEST(StoppedRank, IsNamedWithItsOp) {
  const RunFolder folder;
  static const InterruptedKernel slow(sleep_until_told);
  const std::vector<std::string> errors = run_recorded(folder, slow);
  const Diagnosis diagnosis = diagnose(recorder::read_run(folder.path()));
  EXPECT_EQ(diagnosis.verdict, RunVerdict::Failed);
  EXPECT_THAT(diagnosis.causes, ElementsAre(2)) << diagnosis.cause;
  EXPECT_THAT(
      diagnosis.cause,
      AllOf(ContainsRegex("^rank 2 \\(host .*, pid [0-9]+, alive\\) has done nothing for [0-9.]+"),
            ContainsRegex(
                " s, in step 17, ring forward of call 1, plan step 0, attend \\(op [0-9]+\\); "),
            ContainsRegex("; ranks (0, )?1 and 3 wait for it: rank [013] in plan step [0-3], recv "
                          "\\(op [0-9]+\\) of 1024 bytes from rank 2 on lane 1$")));
  EXPECT_THAT(diagnosis.waits_for[3], ElementsAre(2));
  EXPECT_THAT(diagnosis.waits_for[1], ElementsAre(2));
  // Rank 3 is next in the ring. Its error has plan step, tile, bytes, peer and the first reason.
  EXPECT_THAT(errors[3], AllOf(ContainsRegex("^attention: ring forward step [12]: recv "
                                             "[kv]\\{[0-9,-]+\\} 1024 bytes from rank 2 on lane 1: "
                                             "rank [013] failed: wait: "),
                               ContainsRegex(" not done after [0-9.]+ s")));
}

TEST(StoppedRank, ARankThatThrowsIsTheCause) {
  const RunFolder folder;
  static const InterruptedKernel broken([] {
    // The others are in their waits by then.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    throw std::runtime_error("the kernel broke");
  });
  const std::vector<std::string> errors = run_recorded(folder, broken);
  const Diagnosis diagnosis = diagnose(recorder::read_run(folder.path()));
  EXPECT_EQ(diagnosis.verdict, RunVerdict::Failed);
  EXPECT_THAT(diagnosis.causes, ElementsAre(2));
  EXPECT_THAT(diagnosis.cause,
              ContainsRegex("^rank 2 .* failed in step 17, ring forward of call 1, plan step 0, "
                            "attend \\(op [0-9]+\\): the kernel broke$"));
  EXPECT_EQ(errors[2], "the kernel broke");
  EXPECT_THAT(errors[3], AllOf(testing::StartsWith("attention: ring forward step "),
                               testing::EndsWith("on lane 1: rank 2 failed: the kernel broke")));
}

// A mesh of 2 x 2 replicas: rank 3 stops before a call of its replica. The other replica is a step
// behind and silent, and nobody waits for it.
TEST(StoppedRank, IsLookedForInTheGroupOfTheCall) {
  const RunFolder folder;
  const auto attend = [](comm::Communicator& cp) {
    const at::Tensor x = at::ones({1, 8, 2, 4});
    attention::sequence_parallel_attention(
        x, x, x, cp,
        {.mask = plan::parse_mask("causal", {16, 16}), .layout = plan::parse_layout("contiguous")});
  };
  const auto body = [&](comm::Communicator& comm) {
    runtime::Rank& rank = runtime::Rank::of(comm);
    rank.record_in(folder.path());
    const comm::Mesh mesh(comm, {.dp = 2, .cp = 2});
    comm::Communicator& cp = mesh.along(MeshAxis::Cp);
    rank.recorder()->begin_step(mesh.index(MeshAxis::Dp) == 0 ? 16 : 17);
    const auto sleep = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
    try {
      if (comm.rank() == 3) sleep(1500);
      if (comm.rank() >= 2) attend(cp);
      while (true) {
        comm.throw_if_failed();
        sleep(1);
      }
    } catch (const CommError& error) {
      rank.recorder()->fail(recorder::End::FailedWithPeers, error.what());
    }
  };
  EXPECT_THROW(comm::run_ranks(4, body, {.timeout_s = 0.5}), CommError);
  const Diagnosis diagnosis = diagnose(recorder::read_run(folder.path()));
  EXPECT_EQ(diagnosis.verdict, RunVerdict::Failed);
  EXPECT_THAT(diagnosis.waits_for, ElementsAre(IsEmpty(), IsEmpty(), ElementsAre(3), IsEmpty()));
  EXPECT_THAT(diagnosis.causes, ElementsAre(3)) << diagnosis.cause;
  EXPECT_THAT(diagnosis.cause, HasSubstr("; rank 2 waits for it"));
}

// Every op of the program is recorded once, with the bytes of the plan.
TEST(StoppedRank, ARunThatEndsWellIsRecordedWhole) {
  const RunFolder folder;
  EXPECT_THAT(run_recorded(folder, kernel::cpu_kernel()), Each(std::string()));
  const RecordedRun run = recorder::read_run(folder.path());
  const Diagnosis diagnosis = diagnose(run);
  EXPECT_EQ(diagnosis.verdict, RunVerdict::Ended);
  EXPECT_EQ(diagnosis.cause, "none: all 4 ranks ended well, in step 17");
  for (const auto& flight : run.flights) {
    ASSERT_TRUE(flight);
    plan::Problem problem = plan::causal_problem(4, 32);
    problem.mask = plan::parse_mask("full", {32, 32});
    const auto programs = runtime::compile_cached(problem, plan::parse_strategy("ring"),
                                                  flight->rank, kernel::cpu_kernel());
    const runtime::CompiledProgram& forward = *programs->forward;
    ASSERT_EQ(flight->ops.size(), forward.ops.size());
    EXPECT_EQ(flight->wait, recorder::Wait::None);
    for (const recorder::RecordedOp& op : flight->ops) {
      EXPECT_TRUE(op.complete);
      EXPECT_EQ(op.call, 1);
      EXPECT_EQ(op.step, 17);
      const runtime::CompiledOp& planned = forward.ops[op.op.index];
      EXPECT_EQ(op.op.kind, planned.op->kind);
      EXPECT_EQ(op.op.plan_step, planned.op->step);
      EXPECT_EQ(op.op.peer, planned.op->peer);
      EXPECT_EQ(op.op.bytes, planned.bytes);
    }
  }
}

// Rank 0 stops outside of attention, where it reports the second step.
TEST(StoppedRank, OutsideOfAttentionIsNamedWithItsActivity) {
  const RunFolder folder;
  train::Recipe recipe = train::small_recipe();
  recipe.training.seq_len = 48;
  recipe.parallelism.context_parallel_degree = 3;
  recipe.training.steps = 3;
  recipe.comm.train_timeout_seconds = 0.5;
  const auto on_step = [](const train::StepMetrics& metrics) {
    if (metrics.step == 2) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  };
  EXPECT_THROW(train::train(recipe, train::words(recipe.training.seq_len),
                            {.on_step = on_step, .run_folder = folder.path()}),
               CommError);
  const Diagnosis diagnosis = diagnose(recorder::read_run(folder.path()));
  EXPECT_EQ(diagnosis.verdict, RunVerdict::Failed);
  EXPECT_THAT(diagnosis.causes, ElementsAre(0)) << diagnosis.cause;
  EXPECT_THAT(diagnosis.cause, AllOf(ContainsRegex(" has done nothing for [0-9.]+ s, in step 2, "),
                                     HasSubstr(" in step 2, reporting the step"),
                                     HasSubstr("; ranks 1 and 2 wait for it")));
}

// The file of rank 1 alone cannot be made: no rank trains.
TEST(StoppedRank, AFileThatCannotBeMadeEndsAllRanks) {
  const RunFolder folder;
  std::filesystem::create_directories(folder.file_of(1) + "/full");
  train::Recipe recipe = train::small_recipe();
  recipe.parallelism.context_parallel_degree = 2;
  int steps = 0;
  std::string text;
  try {
    train::train(
        recipe, train::words(recipe.training.seq_len),
        {.on_step = [&](const train::StepMetrics&) { ++steps; }, .run_folder = folder.path()});
  } catch (const IoError& error) {
    text = error.what();
  }
  EXPECT_THAT(text, HasSubstr("rank-0001.bin cannot be made (Directory not empty)"));
  EXPECT_EQ(steps, 0);
  const recorder::Flight other = recorder::read_flight(folder.file_of(0));
  EXPECT_EQ(other.end, recorder::End::FailedWithPeers);
  EXPECT_THAT(other.reason, HasSubstr("rank 1: recorder: "));
}

TEST(StoppedRank, TrainingThatEndsWellSaysSo) {
  const RunFolder folder;
  train::Recipe recipe = train::small_recipe();
  recipe.parallelism.context_parallel_degree = 2;
  recipe.training.steps = 2;
  train::train(recipe, train::words(recipe.training.seq_len), {.run_folder = folder.path()});
  EXPECT_EQ(diagnose(recorder::read_run(folder.path())).cause,
            "none: all 2 ranks ended well, in step 2");
}

}  // namespace
}  // namespace armillary::flight
