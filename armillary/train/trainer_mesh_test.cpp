// trainer_mesh_test.cpp: training on meshes of dp x cp at every stage of ZeRO: against one rank,
// stages against each other bit for bit, and checkpoints that go from one mesh and stage to others.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/model/model.h"
#include "armillary/train/testing/mesh_degrees.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_training.h"
#include "tests/seed.h"

namespace armillary::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Recipe mesh_recipe() {
  Recipe recipe = small_recipe();
  recipe.training.global_batch_size = 6;
  recipe.training.steps = 4;
  recipe.lr_scheduler.warmup_steps = 1;
  return recipe;
}

void expect_near(const std::vector<StepMetrics>& result, const std::vector<StepMetrics>& expected,
                 double relative, const std::string& what) {
  ASSERT_EQ(result.size(), expected.size()) << what;
  for (std::size_t i = 0; i < result.size(); ++i) {
    EXPECT_NEAR(result[i].loss, expected[i].loss, relative * expected[i].loss)
        << what << ", step " << i + 1;
    EXPECT_NEAR(result[i].grad_norm, expected[i].grad_norm, relative * expected[i].grad_norm)
        << what << ", step " << i + 1;
  }
}

void expect_same_bits(const std::vector<StepMetrics>& result,
                      const std::vector<StepMetrics>& expected, const std::string& what) {
  expect_near(result, expected, 0, what);
}

// Stages in turn over the meshes, and all of them on the mesh of all axes; each mesh with one of
// the six models, in turn. Every one of them is in trainer_grid_test.cpp.
TEST(TrainMesh, EveryMeshAndStageEqualsOneRank) {
  std::vector<MeshDegrees> all;
  for (int zero = 0; zero <= 3; ++zero) {
    all.push_back({.shards = 2, .cp = 2, .zero = zero, .tp = 2});
  }
  for (const MeshDegrees& mesh : {MeshDegrees{.cp = 2},
                                  {.shards = 2},
                                  {.copies = 2},
                                  {.shards = 2, .cp = 2},
                                  {.copies = 2, .cp = 2},
                                  {.shards = 3},
                                  {.copies = 3, .shards = 2},
                                  {.tp = 2},
                                  {.tp = 4},
                                  {.shards = 2, .tp = 2}}) {
    all.push_back(mesh);
  }
  int turn = 0;
  std::size_t model_turn = 0;
  for (const std::string model : {"gpt", "gpt2", "llama"}) {
    for (const bool tied : {false, true}) {
      Recipe recipe = mesh_recipe();
      recipe.model.name = model;
      recipe.model.enable_weight_tying = tied;
      recipe.activation_checkpoint.mode = tied ? "attention_output" : "full";
      const std::vector<StepMetrics> one = run(on(recipe, {}));
      EXPECT_LT(one.back().loss, one.front().loss);
      for (std::size_t i = model_turn++; i < all.size(); i += 6) {
        MeshDegrees degrees = all[i];
        if (i >= 4) degrees.zero = turn++ % 4;
        expect_near(run(on(recipe, degrees)), one, model == "gpt2" ? 5e-5 : 1e-5,
                    fmt::format("{}, {}", model, to_string(degrees)));
      }
    }
  }
}

TEST(TrainMesh, TensorParallelismMayKeepItsInputs) {
  Recipe recipe = mesh_recipe();
  const std::vector<StepMetrics> again = run(on(recipe, {.tp = 2}));
  recipe.parallelism.tensor_parallel_keep_inputs = true;
  expect_same_bits(run(on(recipe, {.tp = 2})), again, "kept");
  EXPECT_THAT([&] { run(on(recipe, {})); },
              ThrowsMessage<InvalidArgument>(HasSubstr("where nothing is gathered")));
}

TEST(TrainMesh, GatheredParametersMayStayAfterForward) {
  Recipe recipe = mesh_recipe();
  recipe.model.enable_weight_tying = true;
  for (const MeshDegrees& mesh :
       {MeshDegrees{.shards = 2, .zero = 3}, {.shards = 2, .cp = 2, .zero = 3, .tp = 2}}) {
    recipe.parallelism.reshard_after_forward = true;
    const std::vector<StepMetrics> again = run(on(recipe, mesh));
    recipe.parallelism.reshard_after_forward = false;
    expect_same_bits(run(on(recipe, mesh)), again, to_string(mesh));
  }
}

TEST(TrainMesh, HeadsThatRanksCannotShareAreRefused) {
  EXPECT_THAT([] { run(on(mesh_recipe(), {.tp = 3})); },
              ThrowsMessage<InvalidArgument>(HasSubstr("over tp 3; ")));
}

// One sequence a rank: gradients are summed in the same order at every stage.
TEST(TrainMesh, StagesHaveTheSameBits) {
  for (const MeshDegrees& mesh :
       {MeshDegrees{.cp = 2}, {.shards = 3}, {.shards = 2, .cp = 2, .tp = 2}}) {
    Recipe recipe = mesh_recipe();
    recipe.training.global_batch_size = mesh.shards;
    const std::vector<StepMetrics> zero0 = run(on(recipe, mesh));
    for (int zero = 1; zero <= 3; ++zero) {
      MeshDegrees degrees = mesh;
      degrees.zero = zero;
      expect_same_bits(run(on(recipe, degrees)), zero0, to_string(degrees));
    }
  }
}

// Stages 0 and 1 add the microbatches of a rank before they sum over ranks, 2 and 3 after.
TEST(TrainMesh, StagesThatSumInOneOrderHaveTheSameBits) {
  const auto steps = [](int zero, const std::string& mode) {
    Recipe recipe = mesh_recipe();
    recipe.training.steps = 2;
    recipe.activation_checkpoint.mode = mode;
    return run(on(recipe, {.shards = 2, .zero = zero}));
  };
  const std::vector<StepMetrics> before = steps(0, "none");
  const std::vector<StepMetrics> after = steps(2, "none");
  expect_near(after, before, 1e-5, "orders");
  for (const std::string mode : {"none", "full", "attention_output"}) {
    expect_same_bits(steps(0, mode), before, "ZeRO-0, " + mode);
    expect_same_bits(steps(1, mode), before, "ZeRO-1, " + mode);
    expect_same_bits(steps(2, mode), after, "ZeRO-2, " + mode);
    expect_same_bits(steps(3, mode), after, "ZeRO-3, " + mode);
  }
}

// Three meshes of ranks that are no neighbours, and in turned order: no collective is the world's.
TEST(TrainMesh, AMeshInsideABiggerWorldTrainsTheSame) {
  Recipe recipe = mesh_recipe();
  recipe.training.steps = 2;
  const Recipe spread = on(recipe, {.shards = 2, .zero = 2});
  const std::vector<StepMetrics> alone = run(spread);
  std::vector<std::vector<StepMetrics>> of_mesh(3);
  comm::run_ranks(6, [&](comm::Communicator& world) {
    at::set_num_threads(1);  // as run() has it
    const int color = world.rank() % 3;
    const std::unique_ptr<comm::Communicator> part = world.split(color, -world.rank());
    const std::unique_ptr<model::Model> model = make_model(spread);
    train(comm::Mesh(*part, mesh_of(spread.parallelism)), *model, words(spread.training.seq_len),
          spread, {.on_step = [&](const StepMetrics& metrics) {
            of_mesh[static_cast<std::size_t>(color)].push_back(metrics);
          }});
  });
  for (const auto& steps : of_mesh) expect_same_bits(steps, alone, "a mesh of six ranks");
}

TEST(TrainMesh, AnAxisOfOneIsTheAxisLeftOut) {
  const Recipe recipe = mesh_recipe();
  const std::vector<StepMetrics> one = run(on(recipe, {}));
  for (int zero = 1; zero <= 3; ++zero) {
    expect_same_bits(run(on(recipe, {.zero = zero})), one, to_string(MeshDegrees{.zero = zero}));
  }
}

// Ranks along dp have documents, and so targets, of their own; some sequences have hardly any.
TEST(TrainMesh, SequencesWithFewTargetsCountByTheirTargets) {
  Recipe recipe = mesh_recipe();
  recipe.training.seq_len = 3;
  const std::vector<StepMetrics> one = run(on(recipe, {}));
  for (int zero = 0; zero <= 3; ++zero) {
    const MeshDegrees degrees{.shards = 3, .cp = 2, .zero = zero};
    expect_near(run(on(recipe, degrees)), one, 1e-5, to_string(degrees));
  }
}

TEST(TrainMesh, AdamIsNotAdamW) {
  Recipe recipe = mesh_recipe();
  recipe.optimizer.weight_decay = 0.5;
  const std::vector<StepMetrics> adamw = run(on(recipe, {}));
  recipe.optimizer.name = "Adam";
  const std::vector<StepMetrics> adam = run(on(recipe, {}));
  EXPECT_NE(adam.back().loss, adamw.back().loss);
  const MeshDegrees degrees{.shards = 2, .cp = 1, .zero = 3};
  expect_near(run(on(recipe, degrees)), adam, 1e-5, to_string(degrees));
}

// The second half, from the checkpoint of the first, has its state elsewhere. Each mesh with one of
// the dtypes, in turn, or with both with ARMILLARY_TEST_ALL.
TEST(TrainMesh, StateOnTheHostHasTheSameBits) {
  int turn = 0;
  for (const char* dtype : {"float32", "bfloat16"}) {
    Recipe recipe = mesh_recipe();
    recipe.training.mixed_precision_param = dtype;
    recipe.lr_scheduler.decay_ratio = 0;  // so that rates do not depend on the number of steps
    int mesh_turn = turn++;
    for (const MeshDegrees& degrees : std::vector<MeshDegrees>{{},
                                                               {.shards = 2, .zero = 1, .tp = 2},
                                                               {.copies = 2, .cp = 2, .zero = 2},
                                                               {.shards = 2, .zero = 3}}) {
      if (mesh_turn++ % 2 != 0 && !test_all()) continue;
      const ScratchFolder folder;
      Recipe host = on(recipe, degrees);
      const std::vector<StepMetrics> device = run(host);
      host.optimizer.state_device = "host";
      expect_same_bits(run(host), device, to_string(degrees) + " on the host");
      for (const bool begins_on_host : {false, true}) {
        Recipe half = host;
        half.job.dump_folder = folder.path(begins_on_host ? "host" : "device");
        half.checkpoint.enable = true;
        half.training.steps = 2;
        half.optimizer.state_device = begins_on_host ? "host" : "device";
        std::vector<StepMetrics> steps = run(half);
        half.training.steps = recipe.training.steps;
        half.optimizer.state_device = begins_on_host ? "device" : "host";
        train(half, words(half.training.seq_len),
              {.on_step = [&](const StepMetrics& metrics) { steps.push_back(metrics); },
               .resume = true});
        expect_same_bits(steps, device, to_string(degrees) + " resumed");
      }
    }
  }
}

TEST(TrainMesh, ACheckpointGoesOnOnAnyMeshAndStage) {
  Recipe recipe = mesh_recipe();
  recipe.model.enable_weight_tying = true;
  recipe.lr_scheduler.decay_ratio = 0;  // so that rates do not depend on the number of steps
  const std::vector<StepMetrics> whole = run(on(recipe, {}));
  const std::vector<MeshDegrees> all{{},
                                     {.cp = 2, .zero = 1},
                                     {.shards = 2, .zero = 2},
                                     {.tp = 4},
                                     {.shards = 3, .zero = 3},
                                     {.shards = 2, .cp = 2, .zero = 3, .tp = 2},
                                     {.copies = 2, .cp = 2, .zero = 1},
                                     {.copies = 3, .shards = 2, .zero = 2},
                                     {.cp = 2, .zero = 1, .tp = 2}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const MeshDegrees& from = all[i];
    const MeshDegrees& to = all[(i + 1) % all.size()];
    const ScratchFolder folder;
    recipe.job.dump_folder = folder.path("run");
    recipe.checkpoint.enable = true;
    Recipe half = on(recipe, from);
    half.training.steps = 2;
    std::vector<StepMetrics> steps = run(half);
    train(
        on(recipe, to), words(recipe.training.seq_len),
        {.on_step = [&](const StepMetrics& metrics) { steps.push_back(metrics); }, .resume = true});
    expect_near(steps, whole, 1e-5, to_string(from) + " -> " + to_string(to));
  }
}

TEST(TrainMesh, ABatchThatRanksCannotShareIsRefusedBeforeAnyRankStarts) {
  EXPECT_THAT([] { run(on(small_recipe(), {.shards = 3})); },
              ThrowsMessage<InvalidArgument>(HasSubstr(
                  "training.global_batch_size = 2 on 3 ranks along dp; a multiple of 3")));
}

}  // namespace
}  // namespace armillary::train
