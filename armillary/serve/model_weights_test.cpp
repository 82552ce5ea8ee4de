// model_weights_test.cpp: the weights of a run are those of its checkpoint, and a model that does
// not predict the next token is refused.
#include "armillary/serve/model_weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/comm/solo.h"
#include "armillary/core/testing/expect_error.h"
#include "armillary/model/registry.h"
#include "armillary/serve/generate.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::serve {
namespace {

TEST(ModelWeights, AreThoseOfACheckpoint) {
  const train::ScratchFolder folder;
  train::Recipe recipe = train::small_recipe();
  recipe.model.name = "llama";
  recipe.training.steps = 4;
  recipe.job.dump_folder = folder.path("run");
  recipe.checkpoint.enable = true;
  recipe.checkpoint.interval = 2;
  train::run(recipe);
  folder.write("run/recipe.toml", print_recipe(recipe));
  const LoadedModel newest = load_run("test", folder.path("run"));
  const std::string saved = folder.path("run") + "/" + recipe.checkpoint.folder;
  const LoadedModel last = load_run("test", saved + "/step-000004");
  const LoadedModel first = load_run("test", saved + "/step-000002");
  EXPECT_EQ(newest.options.name, "llama");
  const auto embedding = [](const LoadedModel& loaded) {
    return loaded.weights->of_unit(0).at("tok_embeddings.weight");
  };
  EXPECT_TRUE(at::equal(embedding(newest), embedding(last)));
  EXPECT_FALSE(at::equal(embedding(newest), embedding(first)));
  EXPECT_GT(newest.weights->bytes(), 4 * embedding(newest).numel());
  // It continues a text.
  const auto comm = comm::make_solo();
  const auto model = model::make_model(newest.options, {});
  Sessions sessions(*comm, *model, [&](int unit) { return newest.weights->of_unit(unit); },
                    {.cache = {.pages = 4}});
  const std::vector<std::vector<std::int64_t>> prompts{{'w', 'o', 'r', 'd'}};
  EXPECT_EQ(generate(*comm, sessions, prompts, {.tokens = 5}).tokens[0].size(), 5U);
}

TEST(ModelWeights, OfOtherMasksAreRefused) {
  const train::ScratchFolder folder;
  train::Recipe recipe = train::small_recipe();
  recipe.training.steps = 1;
  recipe.parallelism.mask = "full";
  recipe.job.dump_folder = folder.path("run");
  recipe.checkpoint.enable = true;
  recipe.checkpoint.interval = 1;
  train::run(recipe);
  folder.write("run/recipe.toml", print_recipe(recipe));
  EXPECT_THAT(error_of([&] { load_run("test", folder.path("run")); }),
              testing::HasSubstr("trained with parallelism.mask full given; one with causal"));
}

}  // namespace
}  // namespace armillary::serve
