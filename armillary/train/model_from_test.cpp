// model_from_test.cpp: recipes for models that are there, and masks that must have their window.
#include "armillary/train/model_from.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "armillary/core/error.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/testing/scratch_folder.h"

namespace armillary::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr const char* kSmallMistral = R"({"hidden_size": 64, "intermediate_size": 96,
  "model_type": "mistral", "num_attention_heads": 4, "num_hidden_layers": 2,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "sliding_window": 32, "vocab_size": 300})";

TEST(ModelFrom, GivesTheRecipeItsKeysAndItsWindow) {
  const ScratchFolder folder;
  folder.write("config.json", kSmallMistral);
  Recipe recipe;
  apply_setting(recipe, "model.from=" + folder.path());
  EXPECT_EQ(recipe.model.name, "llama");
  EXPECT_EQ(recipe.model.dim, 64);
  EXPECT_EQ(recipe.model.norm_eps, 1e-6);
  EXPECT_EQ(recipe.parallelism.mask, "documents:within=window,left=31,right=0");
  validate(recipe);
  // A recipe like any other, which later settings change.
  const std::string text = print_recipe(recipe);
  EXPECT_THAT(text, AllOf(HasSubstr("sliding_window = 32"), testing::Not(HasSubstr("from ="))));
  EXPECT_EQ(print_recipe(parse_recipe(text, "printed")), text);
  apply_setting(recipe, "model.n_layers=3");
  EXPECT_EQ(recipe.model.n_layers, 3);
  EXPECT_THAT([&] { apply_setting(recipe, "model.from=" + folder.path("none")); },
              ThrowsMessage<IoError>(HasSubstr("none/config.json' does not exist")));
}

TEST(ModelFrom, AMaskWithoutTheWindowIsRefusedByName) {
  Recipe recipe;
  for (const char* setting :
       {"model.name=llama", "model.sliding_window=9", "training.seq_len=64"}) {
    apply_setting(recipe, setting);
  }
  const auto refused = [&](const std::string& mask, const std::string& nearest) {
    recipe.parallelism.mask = mask;
    EXPECT_THAT([&] { validate(recipe); },
                ThrowsMessage<InvalidArgument>(
                    "recipe: parallelism.mask " + mask +
                    " with model.sliding_window 9; a mask that shows each token itself and the 8 "
                    "before it is required; nearest: " +
                    nearest));
  };
  refused("documents", "documents:within=window,left=8,right=0");
  refused("documents:within=full", "documents:within=window,left=8,right=0");
  refused("causal", "window:left=8,right=0");
  refused("window:left=9,right=0", "window:left=8,right=0");
  refused("window:left=8,right=1", "window:left=8,right=0");
  recipe.model.name = "moe";
  refused("causal", "window:left=8,right=0");
  recipe.model.name = "llama";
  for (const char* mask : {"window:left=8,right=0", "documents:within=window,left=8,right=0"}) {
    recipe.parallelism.mask = mask;
    EXPECT_NO_THROW(validate(recipe)) << mask;
  }
  // A sequence that is no longer than the window has the causal mask.
  recipe.parallelism.mask = "documents";
  recipe.training.seq_len = 9;
  EXPECT_NO_THROW(validate(recipe));
  recipe.training.seq_len = 10;
  EXPECT_THROW(validate(recipe), InvalidArgument);
}

}  // namespace
}  // namespace armillary::train
