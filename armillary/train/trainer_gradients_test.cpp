// trainer_gradients_test.cpp: every gradient of a step against one rank: copies of shares, and
// targets that ranks have unequally.
//
// With beta1 = 0 the mean of Adam is the gradient, and the checkpoint behind the step has it.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "armillary/train/checkpoint/folder.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/testing/mesh_degrees.h"
#include "armillary/train/testing/saved_values.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

Recipe gradient_recipe(bool tied) {
  Recipe recipe = small_recipe();
  recipe.model.name = "llama";
  recipe.model.enable_weight_tying = tied;
  recipe.training.global_batch_size = 8;
  recipe.training.steps = 1;
  recipe.training.check_replicas = 1;
  recipe.training.max_norm = std::numeric_limits<double>::infinity();
  recipe.optimizer.beta1 = 0;
  recipe.checkpoint.enable = true;
  return recipe;
}

/// Loss, and every gradient by the name of its mean.
struct StepGradients {
  double loss = 0;
  SavedValues values;
};

StepGradients gradients_of(Recipe recipe, const Data& data) {
  const ScratchFolder folder;
  recipe.job.dump_folder = folder.path("run");
  StepGradients gradients;
  train(recipe, data,
        {.on_step = [&](const StepMetrics& metrics) { gradients.loss = metrics.loss; }});
  gradients.values = saved_values(checkpoint_folder(recipe) + "/" + checkpoint_name(1), "means/");
  return gradients;
}

void expect_gradients(const StepGradients& result, const StepGradients& expected,
                      const std::string& where) {
  EXPECT_NEAR(result.loss, expected.loss, 1e-5 * expected.loss) << where;
  expect_values_near(result.values, expected.values, 5e-5, where);
}

// Copies of shares, beside the axis of one: replicas along two axes.
TEST(TrainGradients, OfCopiesOfSharesAreThoseOfOneRank) {
  const Recipe recipe = gradient_recipe(true);
  const PackedText text = words(recipe.training.seq_len);
  const StepGradients one = gradients_of(recipe, text);
  for (int zero = 0; zero <= 3; ++zero) {
    const MeshDegrees degrees{.copies = 2, .shards = 2, .cp = 2, .zero = zero};
    expect_gradients(gradients_of(on(recipe, degrees), text), one, to_string(degrees));
  }
}

/// Text in which every third sequence has no target, and of the others only the first tokens do.
class FewTargets : public Data {
 public:
  explicit FewTargets(PackedText text) : text_(std::move(text)) {}
  std::int64_t vocab_size() const override { return text_.vocab_size(); }
  Sequence at(std::int64_t index) const override {
    Sequence sequence = text_.at(index);
    const at::Tensor labels = sequence.fields.at(model::kLabels).clone();
    const std::int64_t targets = index % 3 == 0 ? 0 : 1 + 7 * (index % 4);
    labels.narrow(0, targets, labels.size(0) - targets).fill_(model::kIgnoredLabel);
    sequence.fields.set(model::kLabels, labels);
    return sequence;
  }

 private:
  PackedText text_;
};

// Ranks along dp, cp and tp have no target in some microbatches, or in all of them.
TEST(TrainGradients, RanksWithoutATargetCountNothing) {
  for (const std::int64_t batch : {3, 6}) {
    Recipe recipe = gradient_recipe(false);
    recipe.training.global_batch_size = batch;
    const FewTargets text(words(recipe.training.seq_len));
    const StepGradients one = gradients_of(recipe, text);
    EXPECT_GT(one.loss, 0);
    for (int zero = 0; zero <= 3; ++zero) {
      const MeshDegrees degrees{
          .shards = 3, .cp = zero % 2 == 0 ? 2 : 1, .zero = zero, .tp = zero % 2 == 0 ? 1 : 2};
      expect_gradients(gradients_of(on(recipe, degrees), text), one,
                       fmt::format("{} sequences, {}", batch, to_string(degrees)));
    }
  }
}

}  // namespace
}  // namespace armillary::train
