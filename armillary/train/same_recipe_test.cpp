// same_recipe_test.cpp: ranks that were started with different recipes: all throw the same text,
// which names the first key that differs, before the first step.
#include "armillary/train/same_recipe.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/core/mesh_shape.h"
#include "armillary/model/registry.h"
#include "armillary/train/testing/changed_decoder.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

using Change = std::function<void(Recipe& recipe, int rank)>;

/// The text that three ranks throw; expects the same one on all of them.
std::string refusal(const Change& change) {
  std::string text;
  comm::run_ranks(3, [&](comm::Communicator& comm) {
    Recipe recipe = small_recipe();
    change(recipe, comm.rank());
    std::string mine;
    try {
      expect_same_settings(comm, settings(recipe));
    } catch (const InvalidArgument& e) {
      mine = e.what();
    }
    if (comm.rank() == 0) text = mine;
    comm.split(0, 0);  // the group is still usable; and `text` is written before the others read it
    EXPECT_EQ(mine, text) << "rank " << comm.rank();
  });
  return text;
}

TEST(SameRecipe, OnesThatDifferAreToldByTheirFirstKey) {
  EXPECT_EQ(refusal([](Recipe& recipe, int rank) { recipe.optimizer.lr = rank < 2 ? 1 : 0.5; }),
            "train: rank 0 has optimizer.lr = 1.0, rank 2 has optimizer.lr = 0.5; one recipe is "
            "required");
  EXPECT_EQ(refusal([](Recipe& recipe, int rank) {
              recipe.training.steps += rank;
              recipe.model.dim += std::int64_t{8} * rank;
            }),
            "train: rank 0 has model.dim = 32, rank 1 has model.dim = 40; one recipe is required");
  // Llama has keys that GPT lacks.
  EXPECT_EQ(refusal([](Recipe& recipe, int rank) { recipe.model.name = rank ? "llama" : "gpt"; }),
            "train: rank 0 has model.name = \"gpt\", rank 1 has model.name = \"llama\"; one recipe "
            "is required");
}

TEST(SameRecipe, FilesMayLieElsewhere) {
  EXPECT_EQ(refusal([](Recipe& recipe, int rank) {
              recipe.job.dump_folder = std::to_string(rank);
              recipe.training.dataset_path = std::to_string(rank);
              recipe.training.validation_path = std::to_string(rank);
              recipe.parallelism.proofs = std::to_string(rank);
              recipe.metrics.log_freq = 1 + rank;
            }),
            "");
}

/// A parameter that begins with other values on the last rank of a mesh.
struct OtherStart {
  MeshShape mesh;
  std::string parameter;
  int same = 0;  ///< The rank with which it is compared.
  int ep = 0;    ///< Ranks that share experts; 0: the model has none.
};

// Ranks whose models have other initial values have equal recipes and would train two models.
void expect_start_refused(const OtherStart& other) {
  SCOPED_TRACE(other.parameter);
  std::atomic<int> steps = 0;
  const int last = other.mesh.ranks() - 1;
  std::vector<std::string> told(static_cast<std::size_t>(other.mesh.ranks()));
  const auto change = [&](std::vector<model::Parameter>& all) {
    for (model::Parameter& one : all) {
      if (one.name == other.parameter) one.init.mean = 0.5;
    }
  };
  const auto body = [&](comm::Communicator& comm) {
    Recipe recipe = other.ep == 0 ? small_recipe() : small_moe_recipe();
    if (other.ep > 0) recipe.parallelism.expert_parallel_degree = other.ep;
    ChangedDecoder model(model::decoder_options(recipe.model).vocab_size(kVocabSize),
                         comm.rank() == last ? change : ChangeParameters());
    const PackedText text = words(recipe.training.seq_len);
    try {
      train(comm::Mesh(comm, other.mesh), model, text, recipe,
            {.on_step = [&](const StepMetrics&) { ++steps; }});
    } catch (const InvalidArgument& error) {
      told[comm.rank()] = error.what();
      throw;
    }
  };
  EXPECT_THROW(comm::run_ranks(other.mesh.ranks(), body), InvalidArgument);
  EXPECT_THAT(told,
              testing::Each(testing::HasSubstr(fmt::format(
                  "the parameters of rank {} differ from those of rank {}", last, other.same))));
  EXPECT_EQ(steps, 0);
}

TEST(SameParameters, AreRequiredBeforeTheFirstStep) {
  expect_start_refused({{.cp = 3}, "output.weight"});
  expect_start_refused({{.tp = 2}, "norm.weight"});
  expect_start_refused({{.tp = 4}, "layers.0.attention.wk.weight", 2});  // KV heads are shared
  expect_start_refused({{.dp = 2, .cp = 2}, "layers.0.moe.experts.w2", 1, 2});
}

// The launcher of train(mesh, ..) need not abort the group: the function itself does.
TEST(SameRecipe, ARankThatThrowsInOnStepEndsTheOthers) {
  std::string told;
  const auto body = [&](comm::Communicator& comm) {
    Recipe recipe = small_recipe();
    const auto model = make_model(recipe);
    const PackedText text = words(recipe.training.seq_len);
    const auto on_step = [](const StepMetrics&) { throw Error("on_step failed"); };
    try {
      train(comm::Mesh(comm, {.cp = 2}), *model, text, recipe, {.on_step = on_step});
    } catch (const Error& error) {  // and stay, as a launcher of processes does
      if (comm.rank() == 1) told = error.what();
    }
  };
  EXPECT_THROW(comm::run_ranks(2, body, {.timeout_s = 20}), CommError);
  EXPECT_THAT(told, testing::HasSubstr("on_step failed"));
}

TEST(SameRecipe, IsRequiredBeforeTheFirstStep) {
  std::atomic<int> steps = 0;
  const auto body = [&](comm::Communicator& comm) {
    Recipe recipe = small_recipe();
    recipe.parallelism.context_parallel_degree = 2;
    recipe.training.seed += comm.rank();
    const auto model = make_model(recipe);
    const PackedText text = words(recipe.training.seq_len);
    train(comm::Mesh(comm, {.cp = 2}), *model, text, recipe,
          {.on_step = [&](const StepMetrics&) { ++steps; }});
  };
  EXPECT_THAT([&] { comm::run_ranks(2, body); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("training.seed")));
  EXPECT_EQ(steps, 0);
}

}  // namespace
}  // namespace armillary::train
