// dit_watch_test.cpp: runs of a DiT that are watched: its validation loss, a rollback behind
// pictures that make the loss jump, and the place of a number that is not finite. Noise, time and
// class of a sequence depend on its number alone, whatever a run has left out before.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/model/picture.h"
#include "armillary/train/checkpoint/folder.h"
#include "armillary/train/evaluate.h"
#include "armillary/train/testing/mesh_degrees.h"
#include "armillary/train/testing/picture_file.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/spiky_data.h"
#include "armillary/train/trainer.h"

namespace armillary::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kPicturesOfStep = 8;

/// Data whose pictures of these sequences are so many times as bright.
class BrightData : public Data {
 public:
  BrightData(const Data& data, std::set<std::int64_t> sequences, double factor)
      : data_(data), sequences_(std::move(sequences)), factor_(factor) {}
  std::int64_t vocab_size() const override { return data_.vocab_size(); }
  Sequence at(std::int64_t index) const override {
    Sequence sequence = data_.at(index);
    if (sequences_.contains(index)) {
      sequence.fields.set(model::kPatches, sequence.fields.at(model::kPatches) * factor_);
    }
    return sequence;
  }

 private:
  const Data& data_;
  const std::set<std::int64_t> sequences_;
  const double factor_;
};

class DitWatch : public testing::Test {
 protected:
  DitWatch() {
    recipe_.job.dump_folder = folder_.path("run");
    recipe_.training.dataset_path = folder_.path("pictures.safetensors");
    recipe_.training.global_batch_size = kPicturesOfStep;
    recipe_.training.local_batch_size = 2;
    recipe_.training.steps = 12;
    recipe_.lr_scheduler.warmup_steps = 1;
    recipe_.lr_scheduler.decay_ratio = 0;
    const model::PictureShape shape = model::dit_options(recipe_.model).picture;
    write_pictures(recipe_.training.dataset_path, shape, 11, recipe_.model.n_classes);
    pictures_ =
        std::make_unique<PictureData>(recipe_.training.dataset_path, picture_options(recipe_));
  }

  static std::vector<StepMetrics> steps_of(const Recipe& recipe, const Data& data,
                                           const Data* validation = nullptr) {
    std::vector<StepMetrics> steps;
    train(recipe, data,
          {.on_step = [&](const StepMetrics& metrics) { steps.push_back(metrics); },
           .validation = validation});
    return steps;
  }

  const ScratchFolder folder_;
  Recipe recipe_ = small_dit_recipe();
  std::unique_ptr<PictureData> pictures_;
};

TEST_F(DitWatch, ValidationIsAnEvaluationOfTheCheckpointAndChangesNoStep) {
  for (const MeshDegrees& degrees :
       {MeshDegrees{.cp = 2}, {.shards = 2, .zero = 3}, {.shards = 2, .zero = 1, .tp = 2}}) {
    Recipe recipe = on(recipe_, degrees);
    recipe.job.dump_folder = folder_.path(to_string(degrees));
    recipe.training.steps = 3;
    recipe.training.validation_interval = 2;
    recipe.training.validation_sequences = 3;  // no multiple of the ranks along dp
    recipe.checkpoint.enable = true;
    recipe.checkpoint.interval = 1;
    recipe.checkpoint.keep_latest_k = 0;
    const std::vector<StepMetrics> steps = steps_of(recipe, *pictures_, pictures_.get());
    std::vector<std::int64_t> validated;
    for (const StepMetrics& step : steps) {
      if (!step.validation_loss) continue;
      validated.push_back(step.step);
      const EvalResult result =
          evaluate(recipe, *pictures_,
                   {.checkpoint = checkpoint_folder(recipe) + "/" + checkpoint_name(step.step),
                    .sequences = 3});
      EXPECT_EQ(result.targets, 3 * 15) << to_string(degrees);
      EXPECT_NEAR(*step.validation_loss, result.loss, 1e-9 * result.loss) << to_string(degrees);
    }
    EXPECT_THAT(validated, ElementsAre(2, 3)) << to_string(degrees);

    recipe.training.validation_interval = 0;
    recipe.checkpoint = {};
    recipe.job.dump_folder += " without";
    const std::vector<StepMetrics> plain = steps_of(recipe, *pictures_);
    ASSERT_EQ(plain.size(), steps.size());
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(steps[i].loss, plain[i].loss) << to_string(degrees) << " step " << i + 1;
    }
  }
}

TEST_F(DitWatch, ARollbackIsTheRunWithoutTheBatch) {
  constexpr std::int64_t kBright = 8;        // the batch, and the step that reads it
  constexpr std::int64_t kBeforeBright = 5;  // the checkpoint before
  const std::int64_t first = (kBright - 1) * kPicturesOfStep;
  const BrightData bright(*pictures_, {first, first + 1, first + 5}, 30);
  for (const MeshDegrees& degrees : {MeshDegrees{.cp = 2}, {.shards = 2, .zero = 2, .tp = 2}}) {
    Recipe recipe = on(recipe_, degrees);
    recipe.job.dump_folder = folder_.path(to_string(degrees));
    recipe.checkpoint.enable = true;
    recipe.checkpoint.interval = kBeforeBright;
    recipe.training.spike_guard = "rollback";
    recipe.training.spike_window = 4;
    const std::vector<StepMetrics> steps = steps_of(recipe, bright);
    recipe.training.spike_guard = "none";
    recipe.checkpoint = {};
    recipe.job.dump_folder += " without";
    const std::vector<StepMetrics> want =
        steps_of(recipe, GappedData(*pictures_, kPicturesOfStep, kBright, kBright));
    // The first attempt ends before the step that spikes.
    ASSERT_EQ(steps.size(), static_cast<std::size_t>(kBright - 1 + 12 - kBeforeBright));
    for (const StepMetrics& step : steps) {
      const StepMetrics& other = want.at(static_cast<std::size_t>(step.step - 1));
      EXPECT_EQ(step.loss, other.loss) << to_string(degrees) << " step " << step.step;
      EXPECT_EQ(step.grad_norm, other.grad_norm) << to_string(degrees) << " step " << step.step;
    }
  }
}

// Sequence 9 is the second one of the first pass of step 2, on the first rank along dp.
TEST_F(DitWatch, APictureThatIsNotFiniteIsNamedByRankUnitAndMicrobatch) {
  const BrightData broken(*pictures_, {9}, NAN);
  recipe_.training.steps = 2;
  EXPECT_THAT([&] { steps_of(on(recipe_, {.shards = 2, .zero = 1}), broken); },
              ThrowsMessage<Error>(HasSubstr("the first in microbatch 0 on rank 0: an activation "
                                             "of unit embedding; lower optimizer.lr")));
  // Ranks along tp have halves of its pass.
  EXPECT_THAT([&] { steps_of(on(recipe_, {.tp = 2}), broken); },
              ThrowsMessage<Error>(HasSubstr("the first in microbatch 0 on rank 1: an activation "
                                             "of unit embedding; lower optimizer.lr")));
}

}  // namespace
}  // namespace armillary::train
