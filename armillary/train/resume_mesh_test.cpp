// resume_mesh_test.cpp: checkpoints of 12 drawn meshes and stages of ZeRO, each resumed on others
// of them: loss, parameters and both moments of the next step are those of one rank that resumed
// from the same checkpoint.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "armillary/train/checkpoint/folder.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/testing/mesh_degrees.h"
#include "armillary/train/testing/saved_values.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kDrawnMeshes = 12;
constexpr std::int64_t kSavedStep = 2;

/// A model of 8 dims, which most meshes do not divide.
Recipe drawn_recipe(const std::string& folder) {
  Recipe recipe = small_recipe();
  recipe.model.name = "llama";
  recipe.model.dim = 8;
  recipe.model.hidden_dim = 18;
  recipe.model.enable_weight_tying = true;
  recipe.training.global_batch_size = 6;
  recipe.training.steps = kSavedStep;
  recipe.lr_scheduler.warmup_steps = 1;
  recipe.lr_scheduler.decay_ratio = 0;  // so that rates do not depend on the number of steps
  recipe.optimizer.lr = 1e-5;           // a gradient that is rounding moves a parameter by this
  recipe.checkpoint.enable = true;
  recipe.job.dump_folder = folder;
  return recipe;
}

/// Different ones of up to 12 ranks. The first has more ranks than a norm has weights.
std::vector<MeshDegrees> drawn_meshes() {
  std::mt19937 random(48);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same ones in each run
  const auto one_of = [&](const std::vector<int>& all) { return all[random() % all.size()]; };
  std::vector<MeshDegrees> meshes{{.shards = 6, .cp = 2, .zero = 3}};
  while (meshes.size() < kDrawnMeshes) {
    const MeshDegrees drawn{.copies = one_of({1, 1, 2, 3}),
                            .shards = one_of({1, 2, 3}),
                            .cp = one_of({1, 2, 3}),
                            .zero = one_of({0, 1, 2, 3}),
                            .tp = one_of({1, 1, 2, 4})};
    const bool shares_batch = 6 % (drawn.copies * drawn.shards) == 0;
    if (!shares_batch || drawn.ranks() > 12 || std::ranges::count(meshes, drawn) > 0) continue;
    meshes.push_back(drawn);
  }
  return meshes;
}

/// A run that resumes from a copy of a checkpoint and takes one step.
struct NextStep {
  double loss = 0;
  SavedValues values;
};

NextStep next_step(const std::string& saved, const std::string& folder,
                   const MeshDegrees& degrees) {
  fs::remove_all(folder);
  fs::copy(saved, folder, fs::copy_options::recursive);
  Recipe recipe = on(drawn_recipe(folder), degrees);
  ++recipe.training.steps;
  NextStep next;
  train(recipe, words(recipe.training.seq_len),
        {.on_step = [&](const StepMetrics& metrics) { next.loss = metrics.loss; }, .resume = true});
  next.values = saved_values(checkpoint_folder(recipe) + "/" + checkpoint_name(kSavedStep + 1));
  return next;
}

/// Saves on every `step`-th mesh, and resumes on those that are `distances` behind it in the list.
void expect_resumed(const std::vector<std::size_t>& distances, std::size_t step = 1) {
  const ScratchFolder folder;
  const std::vector<MeshDegrees> meshes = drawn_meshes();
  for (std::size_t i = 0; i < meshes.size(); i += step) {
    const std::string saved = folder.path(fmt::format("saved-{}", i));
    run(on(drawn_recipe(saved), meshes[i]));
    const NextStep one = next_step(saved, folder.path("one"), {});
    for (const std::size_t distance : distances) {
      const MeshDegrees& to = meshes[(i + distance) % meshes.size()];
      const std::string where = to_string(meshes[i]) + " -> " + to_string(to);
      const NextStep next = next_step(saved, folder.path("next"), to);
      EXPECT_NEAR(next.loss, one.loss, 1e-6 * one.loss) << where;
      expect_values_near(next.values, one.values, 1e-6, where);
    }
  }
}

// Every second mesh saves, and the others go on: the distance is odd.
TEST(ResumeMesh, ACheckpointOfAnyGoesOnOnAnyOtherWithItsMoments) {
  expect_resumed({5}, 2);
}

// A minute: all 144 pairs.
TEST(ResumeMesh, DISABLED_ACheckpointOfEachGoesOnOnEach) {
  std::vector<std::size_t> all(kDrawnMeshes);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  expect_resumed(all);
}

}  // namespace
}  // namespace armillary::train
