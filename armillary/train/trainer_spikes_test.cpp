// trainer_spikes_test.cpp: runs that a spike or a NaN strikes: they end on all ranks, or go back to
// the last checkpoint and are, bit for bit, the run in which the batch was never there.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/model/decoder.h"
#include "armillary/model/registry.h"
#include "armillary/train/checkpoint/folder.h"
#include "armillary/train/testing/mesh_degrees.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_training.h"
#include "armillary/train/testing/spiky_data.h"

namespace armillary::train {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kSpike = 12;  // the batch, and the step that reads it
constexpr std::int64_t kSaved = 10;  // the checkpoint before
constexpr std::int64_t kLastStep = 16;
constexpr std::int64_t kBatch = 2;

/// The loss falls fast, so that labels that were never seen stand out after a few steps.
Recipe guarded_recipe(const ScratchFolder& folder, const std::string& name) {
  Recipe recipe = small_recipe();
  recipe.job.dump_folder = folder.path(name);
  recipe.training.steps = kLastStep;
  recipe.training.global_batch_size = kBatch;
  recipe.optimizer.lr = 0.01;
  recipe.lr_scheduler.decay_ratio = 0;
  recipe.checkpoint.enable = true;
  recipe.checkpoint.interval = 5;
  recipe.training.spike_guard = "rollback";
  recipe.training.spike_window = 4;
  recipe.training.spike_loss_factor = 1.5;
  return recipe;
}

struct GuardedRun {
  std::vector<StepMetrics> steps;
  std::vector<std::int64_t> starts;
  std::vector<std::string> notices;
  TrainResult result;
};

GuardedRun guarded_run(const Recipe& recipe, const Data& data, bool resume = false) {
  GuardedRun run;
  run.result = train(recipe, data,
                     {.on_step = [&](const StepMetrics& metrics) { run.steps.push_back(metrics); },
                      .on_start = [&](std::int64_t steps) { run.starts.push_back(steps); },
                      .on_notice = [&](const std::string& line) { run.notices.push_back(line); },
                      .resume = resume});
  return run;
}

/// Expects the steps of `got` to have the bits of those of `want`, by their numbers.
void expect_same_steps(const std::vector<StepMetrics>& got, const std::vector<StepMetrics>& want,
                       const std::string& where = "") {
  for (const StepMetrics& metrics : got) {
    const StepMetrics& other = want.at(static_cast<std::size_t>(metrics.step - 1));
    EXPECT_EQ(metrics.loss, other.loss) << where << " step " << metrics.step;
    EXPECT_EQ(metrics.grad_norm, other.grad_norm) << where << " step " << metrics.step;
  }
}

/// The steps of a run whose data lack some batches, without a guard.
std::vector<StepMetrics> steps_without(Recipe recipe, std::int64_t first, std::int64_t last) {
  recipe.training.spike_guard = "none";
  recipe.checkpoint = {};
  recipe.job.dump_folder += "_without";
  const PackedText text = words(recipe.training.seq_len);
  return guarded_run(recipe, GappedData(text, kBatch, first, last)).steps;
}

TEST(TrainSpikes, ARollbackIsTheRunWithoutTheBatch) {
  const ScratchFolder folder;
  const PackedText text = words(small_recipe().training.seq_len);
  const SpikyData data(text, kBatch, {kSpike});
  struct Skip {
    const char* name;
    std::int64_t first;
  };
  for (const Skip& skip : {Skip{"batch", kSpike}, Skip{"since_checkpoint", kSaved + 1}}) {
    Recipe recipe = on(guarded_recipe(folder, skip.name), {.cp = 2});
    recipe.training.spike_skip = skip.name;
    const GuardedRun run = guarded_run(recipe, data);
    EXPECT_EQ(run.result.rollbacks, 1);
    EXPECT_EQ(run.result.steps, kLastStep);
    EXPECT_THAT(run.starts, ElementsAre(0, kSaved));
    EXPECT_THAT(run.notices,
                ElementsAre(AllOf(HasSubstr("train: loss "), HasSubstr(" times the median "),
                                  HasSubstr("in step 12; "), HasSubstr("rollback 1 of at most 3"),
                                  HasSubstr("batch 12")),
                            HasSubstr("step-000010")));
    ASSERT_EQ(run.steps.size(), static_cast<std::size_t>(kSpike - 1 + kLastStep - kSaved));
    const std::vector<StepMetrics> want = steps_without(recipe, skip.first, kSpike);
    // The steps of the first attempt are those of either run up to the checkpoint.
    const auto behind = run.steps.begin() + (kSpike - 1);
    expect_same_steps({run.steps.begin(), run.steps.begin() + kSaved}, want, skip.name);
    expect_same_steps({behind, run.steps.end()}, want, skip.name);
  }
}

TEST(TrainSpikes, ARollbackWorksOnEveryMeshAndStage) {
  const PackedText text = words(small_recipe().training.seq_len);
  const SpikyData data(text, kBatch, {kSpike});
  for (const MeshDegrees& degrees : {MeshDegrees{},
                                     {.shards = 2, .zero = 1},
                                     {.shards = 2, .zero = 2},
                                     {.shards = 2, .cp = 2, .zero = 3},
                                     {.copies = 2, .zero = 1, .tp = 2}}) {
    for (const char* place : {"device", "host"}) {
      const ScratchFolder folder;
      Recipe recipe = on(guarded_recipe(folder, "run"), degrees);
      recipe.optimizer.state_device = place;
      const GuardedRun run = guarded_run(recipe, data);
      EXPECT_EQ(run.result.rollbacks, 1) << to_string(degrees) << place;
      expect_same_steps({run.steps.end() - (kLastStep - kSaved), run.steps.end()},
                        steps_without(recipe, kSpike, kSpike), to_string(degrees) + place);
    }
  }
}

// The bias that balances the choice of experts is a parameter without a moment: it goes back with
// them.
TEST(TrainSpikes, ARollbackTakesTheBalanceOfExpertsBack) {
  const PackedText text = words(small_recipe().training.seq_len);
  const SpikyData data(text, kBatch, {kSpike});
  for (const MeshDegrees& degrees : {MeshDegrees{.cp = 2}, {.shards = 2, .zero = 3, .tp = 2}}) {
    const ScratchFolder folder;
    Recipe recipe = on(guarded_recipe(folder, "run"), degrees);
    recipe.model = small_moe_recipe().model;
    recipe.model.load_balance_coeff = 0.05;
    recipe.training.spike_loss_factor = 1.3;
    recipe.parallelism.expert_parallel_degree = 2;
    const GuardedRun run = guarded_run(recipe, data);
    EXPECT_EQ(run.result.rollbacks, 1) << to_string(degrees);
    expect_same_steps({run.steps.end() - (kLastStep - kSaved), run.steps.end()},
                      steps_without(recipe, kSpike, kSpike), to_string(degrees));
  }
}

// Batches that were left out, and the steps of the median, are in the checkpoint.
TEST(TrainSpikes, ARunThatResumesKnowsWhatWasLeftOutAndTheMedian) {
  const ScratchFolder folder;
  const PackedText text = words(small_recipe().training.seq_len);
  const SpikyData data(text, kBatch, {kSpike, kLastStep + 3});
  Recipe recipe = guarded_recipe(folder, "run");
  guarded_run(recipe, data);
  recipe.training.steps = kLastStep + 5;
  recipe.training.spike_guard = "stop";
  // Batch 19 is read in step 18, before the window of a run that began behind step 16 is full.
  EXPECT_THAT([&] { guarded_run(recipe, data, true); },
              ThrowsMessage<Error>(AllOf(HasSubstr("train: loss "), HasSubstr("in step 18"))));
  recipe.training.spike_guard = "none";
  const GuardedRun rest = guarded_run(recipe, SpikyData(text, kBatch, {kSpike}), true);
  expect_same_steps(rest.steps, steps_without(recipe, kSpike, kSpike));
  ASSERT_EQ(rest.steps.size(), 5U);
}

TEST(TrainSpikes, ABatchThatIsNotLeftOutEndsTheRunAtLast) {
  const ScratchFolder folder;
  const PackedText text = words(small_recipe().training.seq_len);
  const SpikyData data(text, kBatch, {kSpike});
  Recipe recipe = guarded_recipe(folder, "run");
  recipe.training.spike_skip = "none";
  recipe.training.spike_rollbacks = 2;
  EXPECT_THAT([&] { guarded_run(recipe, data); },
              ThrowsMessage<Error>(
                  AllOf(HasSubstr("in step 12"),
                        HasSubstr("2 rollbacks went before, training.spike_rollbacks are 2"))));
  EXPECT_EQ(find_checkpoints(checkpoint_folder(recipe)).whole.back().step, kSaved);
}

TEST(TrainSpikes, AStopBehindARollbackNamesTheCheckpoint) {
  const ScratchFolder folder;
  const PackedText text = words(small_recipe().training.seq_len);
  const SpikyData data(text, kBatch, {kSpike});
  bool is_back = false;
  const TrainResult result = train(guarded_recipe(folder, "run"), data,
                                   {.on_notice = [&](const std::string&) { is_back = true; },
                                    .stop_requested = [&] { return is_back; }});
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.steps, kSaved);
  EXPECT_THAT(result.checkpoint, HasSubstr("step-000010"));
}

TEST(TrainSpikes, AStopNamesTheSpikeAndLeavesTheCheckpoint) {
  const ScratchFolder folder;
  const PackedText text = words(small_recipe().training.seq_len);
  const SpikyData data(text, kBatch, {kSpike});
  Recipe recipe = guarded_recipe(folder, "run");
  recipe.training.spike_guard = "stop";
  EXPECT_THAT(
      [&] { guarded_run(recipe, data); },
      ThrowsMessage<Error>(AllOf(HasSubstr("train: loss "), HasSubstr("in step 12; at most "),
                                 HasSubstr("training.spike_loss_factor"))));
  EXPECT_EQ(find_checkpoints(checkpoint_folder(recipe)).whole.back().step, kSaved);
  // The checkpoint of the step before is there too, though its save had just begun.
  recipe.job.dump_folder = folder.path("next");
  recipe.checkpoint.interval = kSpike - 1;
  EXPECT_THROW(guarded_run(recipe, data), Error);
  EXPECT_EQ(find_checkpoints(checkpoint_folder(recipe)).whole.back().step, kSpike - 1);
  // Without a guard the batch is trained on.
  recipe.job.dump_folder = folder.path("none");
  recipe.training.spike_guard = "none";
  EXPECT_EQ(guarded_run(recipe, data).result.steps, kLastStep);
}

/// A decoder whose head sees NaN in one pass.
class FailingDecoder : public model::Decoder {
 public:
  FailingDecoder(const model::DecoderOptions& options, int bad_pass)
      : model::Decoder(options), bad_pass_(bad_pass) {}
  at::Tensor run(int unit, const model::Weights& weights, const at::Tensor& x,
                 const model::ModelInputs& inputs) override {
    const bool is_head = unit + 1 == static_cast<int>(units().size());
    const bool is_bad = is_head && pass_++ == bad_pass_;
    return model::Decoder::run(unit, weights, is_bad ? x * NAN : x, inputs);
  }

 private:
  int bad_pass_;
  int pass_ = 0;
};

/// Trains on two ranks along cp, of which rank 1 fails in a pass; -1: in none. Gives the steps, and
/// what each rank throws to `told`.
std::vector<StepMetrics> run_with_fault(Recipe recipe, int bad_pass,
                                        std::vector<std::string>& told) {
  recipe.training.spike_loss_factor = recipe.training.spike_norm_factor = 1e6;
  std::vector<StepMetrics> steps;
  const auto body = [&](comm::Communicator& comm) {
    FailingDecoder model(model::decoder_options(recipe.model).vocab_size(kVocabSize),
                         comm.rank() == 1 ? bad_pass : -1);
    try {
      train(comm::Mesh(comm, {.cp = 2}), model, words(recipe.training.seq_len), recipe,
            {.on_step = [&](const StepMetrics& metrics) { steps.push_back(metrics); }});
    } catch (const Error& error) {
      told[static_cast<std::size_t>(comm.rank())] = error.what();
      throw;
    }
  };
  try {
    comm::run_ranks(2, body);
  } catch (const Error&) {  // every rank has told it
  }
  return steps;
}

// A fault of one rank that does not come again: pass 0 is the rehearsal, then one pass a step.
TEST(TrainSpikes, ANanThatDoesNotComeAgainChangesNothing) {
  const ScratchFolder folder;
  Recipe recipe = on(guarded_recipe(folder, "fault"), {.cp = 2});
  recipe.training.global_batch_size = 1;
  recipe.training.spike_skip = "none";
  recipe.checkpoint.interval = 3;
  std::vector<std::string> told(2);
  const std::vector<StepMetrics> struck = run_with_fault(recipe, 8, told);
  EXPECT_THAT(told, Each(""));
  recipe.job.dump_folder = folder.path("whole");
  const std::vector<StepMetrics> whole = run_with_fault(recipe, -1, told);
  EXPECT_THAT(told, Each(""));
  ASSERT_EQ(whole.size(), static_cast<std::size_t>(kLastStep));
  ASSERT_EQ(struck.size(), whole.size() + 1) << "step 7 was taken twice";
  expect_same_steps(struck, whole);
}

TEST(TrainSpikes, WithoutACheckpointThereIsNoWayBack) {
  const ScratchFolder folder;
  Recipe recipe = on(guarded_recipe(folder, "run"), {.cp = 2});
  recipe.training.global_batch_size = 1;
  std::vector<std::string> told(2);
  run_with_fault(recipe, 3, told);
  EXPECT_THAT(told, Each(AllOf(HasSubstr("in step 3; finite numbers are required"),
                               HasSubstr("there is no checkpoint yet to go back to"))));
  // A guard that stops says of NaN what a run without one says.
  recipe.training.spike_guard = "stop";
  recipe.job.dump_folder = folder.path("stop");
  run_with_fault(recipe, 3, told);
  EXPECT_THAT(told, Each(HasSubstr("in step 3; finite numbers are required")));
}

}  // namespace
}  // namespace armillary::train
