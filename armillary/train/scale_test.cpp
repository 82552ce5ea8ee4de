// scale_test.cpp: recipes made tiny: what stays, what shrinks, and that the result is a recipe like
// any other.
#include "armillary/train/scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/train/recipe_parts.h"

namespace armillary::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

Recipe with_settings(const std::vector<std::string>& settings) {
  Recipe recipe;
  for (const std::string& setting : settings) apply_setting(recipe, setting);
  return recipe;
}

Recipe shrunk(std::vector<std::string> settings) {
  settings.emplace_back("model.scale=tiny");
  Recipe recipe = with_settings(settings);
  validate(recipe);
  return recipe;
}

TEST(Scale, HeadsKeepTheirGroupsAndTheMlpItsRatio) {
  const Recipe llama = shrunk({"model.name=llama", "model.dim=8192", "model.n_layers=80",
                               "model.n_heads=64", "model.n_kv_heads=8", "model.hidden_dim=28672",
                               "model.vocab_size=128256", "model.multiple_of=4096"});
  EXPECT_EQ(llama.model.n_layers, 2);
  EXPECT_EQ(llama.model.n_kv_heads, 4);
  EXPECT_EQ(llama.model.n_heads, 32);
  EXPECT_EQ(llama.model.dim, 512);
  EXPECT_EQ(llama.model.hidden_dim, 1792);
  EXPECT_EQ(llama.model.multiple_of, 16);
  EXPECT_EQ(llama.model.vocab_size, 257);
  EXPECT_EQ(llama.training.seq_len, 256);

  const Recipe smollm = shrunk({"model.dim=576", "model.n_heads=9", "model.n_kv_heads=3"});
  EXPECT_EQ(smollm.model.n_heads, 9);
  EXPECT_EQ(smollm.model.n_kv_heads, 3);
  EXPECT_EQ(smollm.model.dim, 144);

  const Recipe gpt2 = shrunk({"model.name=gpt2", "model.dim=1600", "model.n_heads=25"});
  EXPECT_EQ(gpt2.model.n_heads, 4);
  EXPECT_EQ(gpt2.model.n_kv_heads, 0);
  EXPECT_EQ(gpt2.model.max_seq_len, 256);
}

TEST(Scale, AxesAboveOneStayAboveOne) {
  const auto mesh = [](const std::vector<std::string>& settings) {
    return mesh_of(shrunk(settings).parallelism);
  };
  const std::string dp = "parallelism.data_parallel_shard_degree=";
  const std::string cp = "parallelism.context_parallel_degree=";
  const std::string tp = "parallelism.tensor_parallel_degree=";
  const std::vector<std::string> heads{"model.dim=512", "model.n_heads=16",
                                       "training.global_batch_size=48"};
  const auto with = [&](std::vector<std::string> settings) {
    settings.insert(settings.end(), heads.begin(), heads.end());
    return mesh(settings);
  };
  EXPECT_EQ(with({}), (MeshShape{}));
  EXPECT_EQ(with({cp + "64"}), (MeshShape{.cp = 4}));
  EXPECT_EQ(with({cp + "3"}), (MeshShape{.cp = 3}));
  const std::string ep = "parallelism.expert_parallel_degree=";
  EXPECT_EQ(with({"model.name=moe", cp + "3", ep + "3"}), (MeshShape{.cp = 3}));
  EXPECT_EQ(with({"model.name=moe", cp + "64", ep + "8"}), (MeshShape{.cp = 4}));
  EXPECT_EQ(with({tp + "8"}), (MeshShape{.tp = 4}));
  EXPECT_EQ(with({dp + "16"}), (MeshShape{.dp = 4}));
  EXPECT_EQ(with({cp + "8", tp + "8"}), (MeshShape{.cp = 2, .tp = 2}));
  EXPECT_EQ(with({dp + "6", cp + "8", tp + "8"}), (MeshShape{.dp = 2, .cp = 2, .tp = 2}));
  // 48 sequences are 3 for each of 16; 16 of them are 1.
  EXPECT_EQ(shrunk({dp + "16", "training.global_batch_size=48"}).training.global_batch_size, 8);
  EXPECT_EQ(shrunk({dp + "16", "training.global_batch_size=16"}).training.global_batch_size, 4);
}

TEST(Scale, StrategiesAreKeptIfTheyAreLegal) {
  const auto strategy = [](const std::string& text, int world) {
    return shrunk({"model.dim=512", "model.n_heads=16", "parallelism.strategy=" + text,
                   "parallelism.context_parallel_degree=" + std::to_string(world)})
        .parallelism.strategy;
  };
  EXPECT_EQ(strategy("ring", 64), "ring");
  EXPECT_EQ(strategy("ulysses", 16), "ulysses");
  EXPECT_EQ(strategy("usp:u=4", 8), "usp:u=4");
  EXPECT_EQ(strategy("usp:u=16", 32), "usp:u=2");
  EXPECT_EQ(strategy("startrail:c=4,placement=collect_intra", 64),
            "startrail:c=2,placement=collect_intra");
  EXPECT_EQ(strategy("attention2d:overlap=true,rows=8", 64), "attention2d:overlap=true,rows=2");
  EXPECT_EQ(strategy("grid:u=1,rq=4,rk=4", 16), "grid:u=1,rq=2,rk=2");
  EXPECT_EQ(strategy("grid:u=2,rq=4,rk=4", 32), "ring");
}

TEST(Scale, TheResultIsARecipeLikeAnyOther) {
  Recipe recipe = shrunk({"model.dim=512", "model.n_heads=16", "training.steps=500",
                          "parallelism.context_parallel_degree=16"});
  EXPECT_EQ(recipe.training.steps, 10);
  EXPECT_LE(recipe.lr_scheduler.warmup_steps, 10);
  const std::string text = print_recipe(recipe);
  EXPECT_THAT(text, AllOf(HasSubstr("dim = 64"), testing::Not(HasSubstr("tiny"))));
  EXPECT_EQ(print_recipe(parse_recipe(text, "printed")), text);
  scale_tiny(recipe);
  EXPECT_EQ(print_recipe(recipe), text);
  // Later settings go over it.
  apply_setting(recipe, "model.n_layers=3");
  EXPECT_EQ(recipe.model.n_layers, 3);
  EXPECT_EQ(print_recipe(with_settings({"model.scale=full"})), print_recipe(Recipe()));
}

TEST(Scale, OtherWordsAreRefused) {
  EXPECT_THAT([] { with_settings({"model.scale=tny"}); },
              ThrowsMessage<InvalidArgument>(
                  "recipe: --set model.scale=tny: model.scale 'tny' is not known; full or tiny is "
                  "required; nearest: tiny"));
  EXPECT_THAT([] { with_settings({"model.scale=3"}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("full or tiny is required")));
  EXPECT_THAT(
      [] {
        with_settings({"model.n_heads=3", "model.scale=tiny"});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("model.n_heads 3 with model.dim 128")));
}

}  // namespace
}  // namespace armillary::train
