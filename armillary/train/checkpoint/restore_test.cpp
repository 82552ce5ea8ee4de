// restore_test.cpp: checkpoints that are not those of the model: a tensor that is missing, of
// another shape or of no parameter ends the run on every rank with one line that names it.
#include "armillary/train/checkpoint/restore.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/comm/mesh.h"
#include "armillary/core/error.h"
#include "armillary/io/file_system.h"
#include "armillary/model/registry.h"
#include "armillary/train/checkpoint/checkpoint.h"
#include "armillary/train/checkpoint/folder.h"
#include "armillary/train/checkpoint/write.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/testing/changed_decoder.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

/// The state of a model of one parameter w.
std::vector<StateTensor> state_of_w(const model::Shape& shape) {
  return state_of({{.name = "w",
                    .range = model::whole_of(shape),
                    .value = at::ones(shape),
                    .gradient = at::zeros(shape),
                    .mean = at::ones(shape),
                    .square = at::ones(shape)}});
}

/// Saves the tensors as step 1, and restores that into the state on three ranks. The line of all.
std::string line_of_ranks(const std::vector<StateTensor>& saved, const model::Shape& shape) {
  const ScratchFolder folder;
  const PackedText text = words(50);
  const WritePlace place{.folder = folder.path(), .step = 1, .rank = 0, .world = 1};
  std::vector<SavedTensor> tensors;
  tensors.reserve(saved.size());
  for (const StateTensor& tensor : saved) tensors.push_back(tensor.saved());
  write_part(io::real_file_system(), place, tensors);
  publish(io::real_file_system(), place,
          {.step = 1,
           .sequences_read = 2,
           .last_sequence = hash_of(text.at(1)),
           .vocab_size = text.vocab_size()},
          "", 0);
  const std::string path = folder.path(checkpoint_name(1));
  std::vector<std::string> told(3);
  const auto body = [&](comm::Communicator& comm) {
    const std::vector<StateTensor> state = state_of_w(shape);
    const auto check = [&](const Restored& restored) {
      check_no_other("STEP", restored.tensors, {{.name = "w", .shape = shape}});
    };
    try {
      restore(comm, path, check, text, state);
      for (const StateTensor& tensor : state) {
        EXPECT_TRUE(tensor.tensor.eq(2).all().item<bool>()) << tensor.name;
      }
    } catch (const IoError& error) {
      told[static_cast<std::size_t>(comm.rank())] = error.what();
    }
  };
  comm::run_ranks(3, body, {.timeout_s = 20});
  EXPECT_EQ(told[1], told[0]);
  EXPECT_EQ(told[2], told[0]);
  std::string line = told[0];
  const std::size_t at = line.find(path);
  return at == std::string::npos ? line : line.replace(at, path.size(), "STEP");
}

TEST(Restore, EveryTensorOfTheStateComesBack) {
  const std::vector<StateTensor> saved = state_of_w({2, 3});
  for (const StateTensor& tensor : saved) tensor.tensor.fill_(2);
  EXPECT_EQ(line_of_ranks(saved, {2, 3}), "");
}

TEST(Restore, ATensorThatIsMissingIsNamed) {
  std::vector<StateTensor> saved = state_of_w({2, 3});
  saved.pop_back();
  EXPECT_EQ(line_of_ranks(saved, {2, 3}),
            "checkpoint: STEP has no tensor 'squares/w'; a checkpoint of this model is required");
}

TEST(Restore, ATensorOfAnotherShapeIsNamed) {
  std::vector<StateTensor> saved = state_of_w({2, 3});
  saved[1] = state_of_w({3, 2})[1];
  EXPECT_NE(
      line_of_ranks(saved, {2, 3}).find("tensor 'means/w' is F32 [3,2]; F32 [2,3] is required"),
      std::string::npos);
}

TEST(Restore, ATensorOfNoParameterIsNamed) {
  std::vector<StateTensor> saved = state_of_w({2, 3});
  saved.push_back(state_of_w({2, 3})[1]);
  saved.back().name = "means/v";
  EXPECT_EQ(line_of_ranks(saved, {2, 3}),
            "checkpoint: STEP has tensor 'means/v', which is of no parameter of the model; a "
            "checkpoint of this model is required");
}

// The recipe is the same; the model is the caller's.
TEST(Restore, ACheckpointOfAnotherModelOfTheSameRecipeIsRefusedOnEveryRank) {
  const ScratchFolder folder;
  Recipe recipe = small_recipe();
  recipe.training.steps = 1;
  recipe.job.dump_folder = folder.path("run");
  recipe.checkpoint.enable = true;
  const auto lines = [&](const ChangeParameters& change, bool resume) {
    std::vector<std::string> told(2);
    const auto body = [&](comm::Communicator& comm) {
      ChangedDecoder model(model::decoder_options(recipe.model).vocab_size(kVocabSize), change);
      try {
        train(comm::Mesh(comm, {.cp = 2}), model, words(recipe.training.seq_len), recipe,
              {.resume = resume});
      } catch (const IoError& error) {
        told[static_cast<std::size_t>(comm.rank())] = error.what();
        throw;
      }
    };
    try {
      comm::run_ranks(2, body);
    } catch (const IoError&) {  // every rank has told it
    }
    EXPECT_EQ(told[1], told[0]);
    return told[0];
  };
  EXPECT_EQ(lines({}, false), "");
  const auto more = [](std::vector<model::Parameter>& all) {
    all.push_back({.name = "more", .shape = {3}, .units = {"head"}});
  };
  EXPECT_NE(lines(more, true).find("has no tensor 'parameters/more'"), std::string::npos);
  const auto wider = [](std::vector<model::Parameter>& all) {
    for (model::Parameter& parameter : all) {
      if (parameter.name == "norm.weight") parameter.shape = {33};
    }
  };
  EXPECT_NE(lines(wider, true).find("'parameters/norm.weight' is F32 [32]; F32 [33] is required"),
            std::string::npos);
}

}  // namespace
}  // namespace armillary::train
