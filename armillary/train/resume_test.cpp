// resume_test.cpp: runs that are stopped, or end badly, and go on: beside the run that was never
// stopped, bitwise on the same world and to rounding on another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/train/checkpoint/folder.h"
#include "armillary/train/lr_schedule.h"
#include "armillary/train/testing/prepared_data.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kSteps = 12;

Recipe saving_recipe(const ScratchFolder& folder) {
  Recipe recipe = small_recipe();
  recipe.training.steps = kSteps;
  recipe.job.dump_folder = folder.path("run");
  recipe.checkpoint.enable = true;
  recipe.checkpoint.interval = 5;
  recipe.parallelism.context_parallel_degree = 2;
  return recipe;
}

/// A run, or a part of one.
struct RunPart {
  std::vector<StepMetrics> steps;
  TrainResult result;
  std::int64_t started_after = -1;
  std::vector<std::string> notices;
};

/// Whether the checkpoint of a step is there, perhaps after a while: it is written beside the
/// steps.
bool is_saved(const Recipe& recipe, std::int64_t step) {
  const fs::path manifest =
      fs::path(checkpoint_folder(recipe)) / checkpoint_name(step) / "manifest.json";
  for (int i = 0; i < 60 && !fs::exists(manifest); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return fs::exists(manifest);
}

/// Trains; asks for a stop in step `stop_in`, or throws out of a later step than `fail_after`, when
/// the checkpoint of that step is there.
RunPart train_part(const Recipe& recipe, bool resume, std::int64_t stop_in = 0,
                   std::int64_t fail_after = 0) {
  RunPart part;
  std::atomic<std::int64_t> last_step = -1;
  const TrainOptions options{
      .on_step =
          [&](const StepMetrics& metrics) {
            part.steps.push_back(metrics);
            last_step = metrics.step;
            if (fail_after > 0 && metrics.step > fail_after && is_saved(recipe, fail_after)) {
              throw Error("pulled the plug");
            }
          },
      .on_start =
          [&](std::int64_t steps) {
            part.started_after = steps;
            last_step = steps;
          },
      .on_notice = [&](const std::string& line) { part.notices.push_back(line); },
      // Asked on every rank; ranks may be a step apart when it begins to say yes.
      .stop_requested = [&] { return stop_in > 0 && last_step >= stop_in - 1; },
      .resume = resume};
  part.result = train(recipe, words(recipe.training.seq_len), options);
  return part;
}

void expect_bitwise(const std::vector<StepMetrics>& got, const std::vector<StepMetrics>& whole) {
  ASSERT_FALSE(got.empty());
  for (const StepMetrics& metrics : got) {
    const StepMetrics& want = whole.at(static_cast<std::size_t>(metrics.step - 1));
    EXPECT_EQ(metrics.loss, want.loss) << "step " << metrics.step;
    EXPECT_EQ(metrics.grad_norm, want.grad_norm) << "step " << metrics.step;
  }
  EXPECT_EQ(got.back().step, static_cast<std::int64_t>(whole.size()));
}

std::vector<std::int64_t> saved_steps(const Recipe& recipe) {
  std::vector<std::int64_t> steps;
  for (const auto& result : find_checkpoints(checkpoint_folder(recipe)).whole) {
    steps.push_back(result.step);
  }
  return steps;
}

TEST(Resume, IsBitwiseAsIfTheRunHadNeverStopped) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const ScratchFolder folder;
    Recipe recipe = saving_recipe(folder);
    recipe.training.mixed_precision_param = dtype;
    Recipe without = recipe;
    without.checkpoint = {};
    const std::vector<StepMetrics> whole = run(without);
    EXPECT_FALSE(fs::exists(recipe.job.dump_folder)) << "nothing is written unless it is enabled";

    // A failure after the checkpoint of step 5; a stop; the end.
    EXPECT_THAT([&] { train_part(recipe, false, 0, 5); }, ThrowsMessage<Error>("pulled the plug"));
    const RunPart second = train_part(recipe, true, /*stop_in=*/9);
    EXPECT_EQ(second.started_after, 5);
    EXPECT_TRUE(second.result.stopped);
    EXPECT_GE(second.result.steps, 9);
    EXPECT_EQ(second.result.checkpoint,
              checkpoint_folder(recipe) + "/" + checkpoint_name(second.result.steps));
    EXPECT_EQ(second.steps.front().step, 6);
    const RunPart third = train_part(recipe, true);
    EXPECT_EQ(third.started_after, second.result.steps);
    EXPECT_FALSE(third.result.stopped);
    EXPECT_EQ(third.result.steps, kSteps);
    EXPECT_THAT(third.notices, ElementsAre(HasSubstr("checkpoint: resumed from ")));
    expect_bitwise(third.steps, whole);
    std::vector<StepMetrics> joined = second.steps;
    joined.insert(joined.end(), third.steps.begin(), third.steps.end());
    expect_bitwise(joined, whole);
    EXPECT_EQ(saved_steps(recipe).back(), kSteps);

    // Nothing is left to do; more steps are.
    const RunPart none = train_part(recipe, true);
    EXPECT_TRUE(none.steps.empty());
    EXPECT_EQ(none.result.steps, kSteps);
    recipe.training.steps = kSteps + 1;
    EXPECT_EQ(train_part(recipe, true).steps.size(), 1U);
  }
}

/// Data that tells when a sequence is read.
class WatchedData : public Data {
 public:
  WatchedData(const Data& data, std::function<void(std::int64_t)> reads)
      : data_(data), reads_(std::move(reads)) {}
  std::int64_t vocab_size() const override { return data_.vocab_size(); }
  Sequence at(std::int64_t index) const override {
    reads_(index);
    return data_.at(index);
  }

 private:
  const Data& data_;
  std::function<void(std::int64_t)> reads_;
};

TEST(Resume, DataPreparedInAnotherWayIsRefusedByItsName) {
  const ScratchFolder folder;
  const Recipe recipe = saving_recipe(folder);
  const PackedText text = words(recipe.training.seq_len);
  train(recipe, PreparedData(text, {"tokenizer = a", "packing = cut"}), {});
  const auto refused = [&](const std::vector<std::string>& lines, const std::string& part) {
    EXPECT_THAT([&] { train(recipe, PreparedData(text, lines), {.resume = true}); },
                ThrowsMessage<InvalidArgument>(HasSubstr(part)));
  };
  refused({"tokenizer = a", "packing = best_fit"},
          "data with packing = best_fit given; packing = cut, as the run began, is required");
  refused({"tokenizer = b", "packing = cut"}, "data with tokenizer = b given; tokenizer = a");
  refused({"tokenizer = a"}, "data with nothing more given; packing = cut");
  refused({}, "data with nothing more given; tokenizer = a");
  EXPECT_NO_THROW(
      train(recipe, PreparedData(text, {"tokenizer = a", "packing = cut"}), {.resume = true}));
}

TEST(Resume, AStopThatComesInAStepEndsTheRunAfterThatStep) {
  const ScratchFolder folder;
  Recipe recipe = saving_recipe(folder);
  recipe.training.global_batch_size = 1;
  const PackedText text = words(recipe.training.seq_len);
  // Step 3 reads the sequence of step 4 ahead, and is told to stop then.
  std::atomic<bool> stops = false;
  const WatchedData data(text, [&](std::int64_t index) { stops = stops || index == 3; });
  const TrainOptions options{.stop_requested = [&] { return stops.load(); }};
  const TrainResult result = train(recipe, data, options);
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.steps, 3);
  EXPECT_EQ(result.checkpoint, checkpoint_folder(recipe) + "/step-000003");
}

TEST(Resume, AStopBeforeTheFirstStepTakesNone) {
  const ScratchFolder folder;
  const Recipe recipe = saving_recipe(folder);
  const TrainOptions options{.on_step = [](const StepMetrics&) { FAIL() << "a step was taken"; },
                             .stop_requested = [] { return true; }};
  const TrainResult result = train(recipe, words(recipe.training.seq_len), options);
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.steps, 0);
  EXPECT_EQ(result.checkpoint, "");
  EXPECT_THAT(saved_steps(recipe), ElementsAre());
}

TEST(Resume, OnAnotherWorldOrStrategyDiffersByRoundingOnly) {
  const ScratchFolder folder;
  const Recipe recipe = saving_recipe(folder);
  Recipe without = recipe;
  without.checkpoint = {};
  const std::vector<StepMetrics> whole = run(without);
  EXPECT_THROW(train_part(recipe, false, 0, 5), Error);
  struct Other {
    std::int64_t world;
    const char* strategy;
    const char* layout;
  };
  for (const Other& other : {Other{1, "ring", "zigzag"}, Other{3, "ring", "contiguous"},
                             Other{4, "usp:u=2", "balanced"}, Other{2, "ulysses", "striped:4"}}) {
    Recipe spread = recipe;
    spread.parallelism.context_parallel_degree = other.world;
    spread.parallelism.strategy = other.strategy;
    spread.parallelism.layout = other.layout;
    spread.checkpoint = {};  // leaves the checkpoint of step 5 for the next
    const RunPart part = train_part(spread, true);
    ASSERT_EQ(part.steps.size(), static_cast<std::size_t>(kSteps - 5));
    for (const StepMetrics& metrics : part.steps) {
      const StepMetrics& want = whole[static_cast<std::size_t>(metrics.step - 1)];
      EXPECT_NEAR(metrics.loss, want.loss, 1e-6 * want.loss) << other.strategy << other.world;
      EXPECT_NEAR(metrics.grad_norm, want.grad_norm, 1e-5 * want.grad_norm) << other.strategy;
    }
  }
}

TEST(Resume, TheNewestAreKeptAndIncompleteOnesPassedOver) {
  const ScratchFolder folder;
  Recipe recipe = saving_recipe(folder);
  recipe.checkpoint.interval = 3;
  recipe.checkpoint.keep_latest_k = 2;
  train_part(recipe, false);
  EXPECT_THAT(saved_steps(recipe), ElementsAre(9, 12));
  const std::string newest = checkpoint_folder(recipe) + "/step-000012";
  fs::remove(newest + "/manifest.json");
  fs::create_directories(checkpoint_folder(recipe) + "/step-000015.tmp");
  const RunPart part = train_part(recipe, true);
  EXPECT_EQ(part.started_after, 9);
  EXPECT_THAT(part.notices, ElementsAre(HasSubstr("step-000012: it has no manifest.json"),
                                        HasSubstr("step-000015.tmp: its writing was cut off"),
                                        HasSubstr("resumed from ")));
  EXPECT_THAT(saved_steps(recipe), ElementsAre(9, 12));
}

// A longer run has another schedule than the one that was saved, and its reader is told.
TEST(Resume, OtherLearningRatesAreSaid) {
  const ScratchFolder folder;
  Recipe recipe = saving_recipe(folder);
  recipe.lr_scheduler.warmup_steps = 2;
  recipe.training.steps = 4;
  recipe.checkpoint.interval = 4;
  train_part(recipe, false);
  recipe.training.steps = 6;
  const RunPart part = train_part(recipe, true);
  EXPECT_THAT(part.notices,
              ElementsAre(HasSubstr("resumed from "),
                          AllOf(HasSubstr("was training.steps = 4: "),
                                HasSubstr("is training.steps = 6: "), HasSubstr(" in step 5"))));
  for (const StepMetrics& metrics : part.steps) {
    EXPECT_EQ(metrics.lr, rates_of(recipe).rates.at(metrics.step));
  }
  ASSERT_EQ(part.steps.size(), 2U);
}

TEST(Resume, RefusesWhatTheRunCannotGoOnFrom) {
  const ScratchFolder folder;
  const Recipe recipe = saving_recipe(folder);
  const auto refused = [](const Recipe& recipe, bool resume, const std::string& text) {
    EXPECT_THAT([&] { train_part(recipe, resume); },
                ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  refused(recipe, true, "/run/checkpoints has no whole checkpoint to resume from; one is required");
  train_part(recipe, false);
  refused(recipe, false,
          "has checkpoints, up to step 12; a run folder without any is required; "
          "nearest: --resume, or another job.dump_folder");
  Recipe other = recipe;
  other.model.dim = 64;
  refused(other, true, "checkpoint: model.dim = 64 given; model.dim = 32, that of the checkpoint");
  other = recipe;
  other.training.steps = 11;
  refused(other, true, "training.steps = 11 given; at least 12");
  // Other documents, of as many bytes.
  EXPECT_THAT(
      [&] {
        train(recipe, PackedText({std::string(9000, 'x')}, {.seq_len = 50, .seed = 3}),
              {.resume = true});
      },
      ThrowsMessage<InvalidArgument>(
          AllOf(HasSubstr("checkpoint: sequence 23 of the data has hash"),
                HasSubstr("training.dataset_path"))));
}

TEST(Resume, DamageIsToldOnAllRanksWithTheTensor) {
  const ScratchFolder folder;
  const Recipe recipe = saving_recipe(folder);
  train_part(recipe, false);
  const std::string part = "run/checkpoints/step-000012/part-00001-of-00002.safetensors";
  std::string bytes = folder.read(part);
  bytes[bytes.size() - 3] ^= 4;
  folder.write(part, bytes);
  EXPECT_THAT([&] { train_part(recipe, true); },
              ThrowsMessage<IoError>(
                  AllOf(HasSubstr(part), HasSubstr("tensor 'squares/"), HasSubstr("was changed"))));
}

}  // namespace
}  // namespace armillary::train
