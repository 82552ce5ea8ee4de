// trainer_validation_test.cpp: the validation loss of a run is that of an evaluation of its
// checkpoint, on every mesh, and changes no step; what cannot be validated is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/train/checkpoint/folder.h"
#include "armillary/train/evaluate.h"
#include "armillary/train/testing/mesh_degrees.h"
#include "armillary/train/testing/prepared_data.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

Recipe validated_recipe() {
  Recipe recipe = small_recipe();
  recipe.training.steps = 5;
  recipe.training.validation_interval = 2;
  recipe.training.validation_sequences = 3;  // no multiple of the ranks along dp
  return recipe;
}

std::vector<StepMetrics> validated_run(const Recipe& recipe, const Data* validation) {
  std::vector<StepMetrics> steps;
  train(recipe, words(recipe.training.seq_len),
        {.on_step = [&](const StepMetrics& metrics) { steps.push_back(metrics); },
         .validation = validation});
  return steps;
}

/// Expects the validation losses of a run to be those of evaluations of its checkpoints.
void expect_losses_of_checkpoints(Recipe recipe, const Data& data) {
  const ScratchFolder folder;
  recipe.job.dump_folder = folder.path();
  recipe.checkpoint.enable = true;
  recipe.checkpoint.interval = 1;
  recipe.checkpoint.keep_latest_k = 0;
  std::vector<std::int64_t> validated;
  for (const StepMetrics& metrics : validated_run(recipe, &data)) {
    if (!metrics.validation_loss) continue;
    validated.push_back(metrics.step);
    const std::string checkpoint = checkpoint_folder(recipe) + "/" + checkpoint_name(metrics.step);
    const EvalResult result = evaluate(recipe, data, {.checkpoint = checkpoint, .sequences = 3});
    EXPECT_NEAR(*metrics.validation_loss, result.loss, 1e-9 * result.loss)
        << " step " << metrics.step;
  }
  EXPECT_THAT(validated, ElementsAre(2, 4, 5)) << "each second, and the last";
}

TEST(TrainValidation, LossIsThatOfAnEvaluationOfTheCheckpoint) {
  const PackedText other({std::string(900, 'w') + std::string(900, 'o')}, {.seq_len = 50});
  for (const MeshDegrees& degrees : {MeshDegrees{},
                                     {.cp = 2},
                                     {.shards = 2, .zero = 2},
                                     {.shards = 2, .cp = 2, .zero = 3},
                                     {.tp = 2},
                                     {.copies = 2, .zero = 1, .tp = 2}}) {
    for (const char* recompute : {"none", "full", "attention_output"}) {
      SCOPED_TRACE(to_string(degrees) + " " + recompute);
      Recipe recipe = on(validated_recipe(), degrees);
      recipe.activation_checkpoint.mode = recompute;
      expect_losses_of_checkpoints(recipe, other);
    }
  }
}

// The balance loss is in neither.
TEST(TrainValidation, LossOfExpertsIsThatOfAnEvaluation) {
  const PackedText other({std::string(900, 'w') + std::string(900, 'o')}, {.seq_len = 50});
  for (const MeshDegrees& degrees : {MeshDegrees{.cp = 2},
                                     {.shards = 2, .cp = 2, .zero = 3},
                                     {.shards = 2, .zero = 1, .tp = 2}}) {
    SCOPED_TRACE(to_string(degrees));
    Recipe recipe = on(validated_recipe(), degrees);
    recipe.model = small_moe_recipe().model;
    recipe.activation_checkpoint.mode = "full";
    recipe.parallelism.expert_parallel_degree = 2;
    expect_losses_of_checkpoints(recipe, other);
  }
}

TEST(TrainValidation, ChangesNoStep) {
  const PackedText text = words(50);
  for (const MeshDegrees& degrees : {MeshDegrees{.cp = 2}, {.shards = 2, .zero = 3, .tp = 2}}) {
    for (const Recipe& of : {small_recipe(), small_moe_recipe()}) {
      Recipe recipe = on(validated_recipe(), degrees);
      recipe.model = of.model;
      const auto validated = validated_run(recipe, &text);
      recipe.training.validation_interval = 0;
      const auto plain = validated_run(recipe, nullptr);
      ASSERT_EQ(validated.size(), plain.size());
      for (std::size_t i = 0; i < plain.size(); ++i) {
        EXPECT_EQ(validated[i].loss, plain[i].loss) << to_string(degrees) << " step " << i + 1;
        EXPECT_EQ(validated[i].grad_norm, plain[i].grad_norm) << to_string(degrees);
      }
    }
  }
}

TEST(TrainValidation, WhatCannotBeValidatedIsRefused) {
  Recipe recipe = validated_recipe();
  const PackedText text = words(50);
  EXPECT_THAT([&] { validated_run(recipe, nullptr); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("training.validation_interval = 2 without validation data")));
  recipe.training.validation_sequences = text.sequences() + 1;
  EXPECT_THAT([&] { validated_run(recipe, &text); },
              ThrowsMessage<InvalidArgument>(HasSubstr("train: training.validation_sequences = ")));
  recipe.training.validation_sequences = 0;
  const PreparedData endless(text, {});
  EXPECT_THAT([&] { validated_run(recipe, &endless); },
              ThrowsMessage<InvalidArgument>(HasSubstr("without an end; at least 1")));
}

TEST(TrainValidation, OtherDataOnOneRankEndsAll) {
  const Recipe recipe = on(validated_recipe(), {.cp = 2});
  const PackedText text = words(50);
  const PackedText other({std::string(5000, 'x')}, {.seq_len = 50});
  const PreparedData mine(text, {"tokenizer = a"});
  const PreparedData its(text, {"tokenizer = b"});
  const auto told_of = [&](const Data& of_rank_0, const Data& of_rank_1) {
    std::vector<std::string> told(2);
    const auto body = [&](comm::Communicator& comm) {
      const auto model = make_model(recipe);
      try {
        train(comm::Mesh(comm, {.cp = 2}), *model, text, recipe,
              {.validation = comm.rank() == 0 ? &of_rank_0 : &of_rank_1});
      } catch (const Error& error) {
        told[static_cast<std::size_t>(comm.rank())] = error.what();
        throw;
      }
    };
    EXPECT_THROW(comm::run_ranks(2, body, {.timeout_s = 20}), InvalidArgument);
    return told;
  };
  EXPECT_THAT(told_of(mine, its), Each(HasSubstr("validation data with tokenizer = ")));
  EXPECT_THAT(told_of(PreparedData(text, {}), PreparedData(other, {})),
              Each(HasSubstr("rank 1 read other validation data than rank 0")));
}

}  // namespace
}  // namespace armillary::train
