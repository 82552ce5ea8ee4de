// dit_grid_test.cpp: a DiT on meshes of dp x cp x tp, ZeRO stages, recomputation and strategies,
// against one rank: losses, norms and every gradient in fp64 to 1e-12. Pictures have 15 tokens, so
// shards differ in size and may be empty.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/model/testing/woken_dit.h"
#include "armillary/predict/cost/model.h"
#include "armillary/train/testing/mesh_grid.h"
#include "armillary/train/testing/picture_file.h"

namespace armillary::train {
namespace {

constexpr double kDitBound = 1e-12;
constexpr double kDitFloor = 1e-4;

/// The recipe of a run of so many steps, as grid_recipe().
Recipe dit_grid_recipe(std::int64_t steps, const Recipe& sizes = small_dit_recipe()) {
  Recipe recipe = in_fp64(sizes);
  recipe.training.global_batch_size = 8;
  recipe.training.local_batch_size = 2;
  recipe.training.steps = steps;
  recipe.training.check_replicas = 2;
  recipe.optimizer.beta1 = 0;
  recipe.optimizer.eps = 1;
  recipe.optimizer.lr = 0.3;
  recipe.lr_scheduler.warmup_steps = 1;
  recipe.lr_scheduler.decay_ratio = 0;
  recipe.checkpoint.enable = true;
  recipe.checkpoint.interval = 1;
  recipe.checkpoint.keep_latest_k = 0;
  return recipe;
}

/// The recipe on a cell, with as many sequences in a pass as it has.
Recipe on_dit_cell(const Recipe& recipe, GridCell cell) {
  cell.options.local_batch_size = recipe.training.local_batch_size;
  return on_cell(recipe, cell);
}

/// Trains a DiT none of whose parameters begins at 0, on pictures of a file.
std::vector<TracedStep> dit_trace(Recipe recipe) {
  const ScratchFolder folder;
  const std::string path = folder.path("pictures.safetensors");
  const model::DitOptions sizes = model::dit_options(recipe.model);
  write_pictures(path, sizes.picture, 11, sizes.n_classes);
  std::int64_t& in_pass = recipe.training.local_batch_size;
  in_pass = std::min<std::int64_t>(in_pass, 8 / mesh_of(recipe.parallelism).dp);
  const PictureData data(path, picture_options(recipe));
  return trace_of(recipe, [&](const Recipe& of_run, const TrainOptions& options) {
    const MeshShape mesh = mesh_of(of_run.parallelism);
    comm::run_ranks(mesh.ranks(), [&](comm::Communicator& comm) {
      model::DitOptions dit = sizes;
      dit.layers.dtype(at::kDouble)
          .recompute(model::parse_recompute(of_run.activation_checkpoint.mode));
      model::WokenDit model(dit);
      train(comm::Mesh(comm, mesh), model, data, of_run, options);
    });
  });
}

/// A recipe whose run on one rank is the reference of others.
struct DitReference {
  explicit DitReference(const Recipe& of) : recipe(of), one(dit_trace(on_dit_cell(of, {}))) {}

  void expect_equal(const Recipe& other, const std::string& what) const {
    const GridError error = error_of(dit_trace(other), one, kDitFloor);
    EXPECT_LE(error.loss, kDitBound) << what;
    EXPECT_LE(error.gradient, kDitBound) << what << ": " << error.where;
  }

  Recipe recipe;
  std::vector<TracedStep> one;
};

// Each mesh of 8 ranks whose heads tp can share, with stages and policies in turn.
TEST(DitGrid, ASampleOfMeshesEqualsOneRank) {
  for (const std::string objective : {"rectified_flow", "ddpm"}) {
    Recipe recipe = dit_grid_recipe(2);
    recipe.model.objective = objective;
    const DitReference reference(recipe);
    EXPECT_GT(reference.one.front().gradients.at("time_embedding.w1.weight").norm().item<double>(),
              0);
    const std::vector<std::string>& policies = cost::recompute_names();
    std::size_t turn = objective == "ddpm" ? 1 : 0;
    for (const MeshShape& mesh : meshes_of(8)) {
      if (mesh.tp > 4 || ++turn % 2 == 0) continue;
      const GridCell cell{mesh, static_cast<int>(turn / 2 % 4), policies[turn / 2 % 3]};
      reference.expect_equal(on_dit_cell(recipe, cell),
                             fmt::format("{}, {}, ZeRO-{}, recompute {}", objective,
                                         mesh_text(mesh), cell.zero, cell.recompute));
    }
  }
}

// A stream of 5 words and one of 15 patches, each with its own positions.
TEST(DitGrid, WithTextEveryMeshEqualsOneRank) {
  const Recipe recipe = dit_grid_recipe(2, small_text_dit_recipe());
  const DitReference reference(recipe);
  EXPECT_GT(reference.one.front().gradients.at("text_positions.weight").norm().item<double>(), 0);
  for (const GridCell& cell : {GridCell{{.cp = 8}, 1, "attention_output"},
                               GridCell{{.dp = 2, .cp = 2, .tp = 2}, 3, "full"},
                               GridCell{{.cp = 3}, 2, "none"}, GridCell{{.tp = 4}, 0, "none"}}) {
    reference.expect_equal(on_dit_cell(recipe, cell), mesh_text(cell.mesh));
  }
}

// Patches over cp and tp, each rank with all words of its pictures; two pictures in a pass.
TEST(DitGrid, WithCrossAttentionEveryMeshEqualsOneRank) {
  for (const std::string modulation : {"single", "zero"}) {
    const Recipe recipe = dit_grid_recipe(2, small_cross_dit_recipe(modulation));
    const DitReference reference(recipe);
    const auto& gradients = reference.one.front().gradients;
    for (const char* name : {"text_positions.weight", "layers.0.cross_attention.wk.weight",
                             "layers.1.cross_attention.wo.bias"}) {
      EXPECT_GT(gradients.at(name).norm().item<double>(), 0) << name;
    }
    for (const GridCell& cell :
         {GridCell{{.cp = 8}, 1, "attention_output"},
          GridCell{{.dp = 2, .cp = 2, .tp = 2}, 3, "full"}, GridCell{{.cp = 3}, 2, "none"},
          GridCell{{.tp = 4}, 0, "none"}, GridCell{{.dp = 2, .tp = 2}, 2, "attention_output"}}) {
      reference.expect_equal(on_dit_cell(recipe, cell), modulation + " " + mesh_text(cell.mesh));
    }
  }
}

TEST(DitGrid, LossesAreEqualUnderEveryStrategyOverAFullMask) {
  Recipe recipe = dit_grid_recipe(1);
  recipe.training.local_batch_size = 1;
  const DitReference reference(recipe);
  const auto on = [&](int cp, const std::string& strategy, const std::string& layout) {
    Recipe other = on_dit_cell(recipe, {{.cp = cp}});
    other.parallelism.strategy = strategy;
    other.parallelism.layout = layout;
    reference.expect_equal(other, strategy + " on " + std::to_string(cp));
  };
  for (const char* strategy : {"startrail:c=1", "startrail:c=2", "startrail:c=4"}) {
    on(16, strategy, "contiguous");
  }
  for (const char* strategy : {"ulysses", "usp:u=2", "tokenring", "double_ring:window=2"}) {
    on(4, strategy, "zigzag");
  }
}

// An hour; by --gtest_also_run_disabled_tests, as the grid of decoders.
TEST(DitGrid, DISABLED_EveryMeshOfEightRanks) {
  Recipe ddpm = dit_grid_recipe(5);
  ddpm.model.objective = "ddpm";
  for (const Recipe& recipe :
       {dit_grid_recipe(5), ddpm, dit_grid_recipe(5, small_text_dit_recipe()),
        dit_grid_recipe(5, small_cross_dit_recipe()),
        dit_grid_recipe(5, small_cross_dit_recipe("zero"))}) {
    const DitReference reference(recipe);
    for (const MeshShape& mesh : meshes_of(8)) {
      if (mesh.tp > recipe.model.n_heads) continue;
      for (int zero = 0; zero <= 3; ++zero) {
        for (const std::string& policy : cost::recompute_names()) {
          reference.expect_equal(
              on_dit_cell(recipe, {mesh, zero, policy}),
              fmt::format("{}, ZeRO-{}, recompute {}", mesh_text(mesh), zero, policy));
        }
      }
    }
  }
}

TEST(DitGrid, ARunBeginsAsTheIdentityAndLearns) {
  const ScratchFolder folder;
  Recipe recipe = small_dit_recipe();
  recipe.training.dataset_path = folder.path("pictures.safetensors");
  recipe.job.dump_folder = folder.path("run");
  recipe.training.global_batch_size = recipe.training.local_batch_size = 8;
  recipe.training.steps = 80;
  recipe.optimizer.lr = 1e-2;
  recipe.parallelism.context_parallel_degree = 2;
  const model::DitOptions sizes = model::dit_options(recipe.model);
  write_pictures(recipe.training.dataset_path, sizes.picture, 5, sizes.n_classes);
  const PictureData data(recipe.training.dataset_path,
                         {.shape = sizes.picture, .n_classes = sizes.n_classes});
  std::vector<double> losses;
  train(recipe, data, {.on_step = [&](const StepMetrics& step) { losses.push_back(step.loss); }});
  // An output of 0: the loss is the mean square of noise - picture, here about 4/3.
  EXPECT_NEAR(losses.front(), 4.0 / 3, 0.3);
  const double last = std::accumulate(losses.end() - 10, losses.end(), 0.0) / 10;
  EXPECT_LT(last, 0.85 * losses.front());
}

}  // namespace
}  // namespace armillary::train
