// model_weights_test.cpp: the weights of a run, a checkpoint and a folder, whole and in parts; what
// does not predict the next token, and sessions that are too long, are refused.
#include "armillary/serve/model_weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "armillary/comm/solo.h"
#include "armillary/core/error.h"
#include "armillary/core/testing/expect_error.h"
#include "armillary/model/registry.h"
#include "armillary/serve/generate.h"
#include "armillary/train/export_model.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::serve {
namespace {

/// A run of a small llama with checkpoints after 2 and 4 steps.
train::Recipe trained_recipe(const train::ScratchFolder& folder) {
  train::Recipe recipe = train::small_recipe();
  recipe.model.name = "llama";
  recipe.training.steps = 4;
  recipe.job.dump_folder = folder.path("run");
  recipe.checkpoint.enable = true;
  recipe.checkpoint.interval = 2;
  train::run(recipe);
  folder.write("run/recipe.toml", print_recipe(recipe));
  return recipe;
}

at::Tensor value_of(const ModelWeights& weights, int unit, const char* name) {
  return weights.of_unit(unit).at(name);
}

TEST(ModelWeights, AreThoseOfACheckpointOrAFolder) {
  const train::ScratchFolder folder;
  const train::Recipe recipe = trained_recipe(folder);
  const ModelFile file("test", folder.path("run"));
  const ModelWeights newest = file.weights();
  const std::string saved = folder.path("run") + "/" + recipe.checkpoint.folder;
  const ModelWeights last = ModelFile("test", saved + "/step-000004").weights();
  const ModelWeights first = ModelFile("test", saved + "/step-000002").weights();
  EXPECT_EQ(file.options().name, "llama");
  EXPECT_EQ(file.tokenizer(), "");
  const char* const name = "tok_embeddings.weight";
  EXPECT_TRUE(at::equal(value_of(newest, 0, name), value_of(last, 0, name)));
  EXPECT_FALSE(at::equal(value_of(newest, 0, name), value_of(first, 0, name)));
  EXPECT_GT(newest.bytes(), 4 * value_of(newest, 0, name).numel());
  // As a model folder, with the tokens at which its text ends.
  train::export_model(folder.path("run"), folder.path("model"), train::FolderFormat::Hf);
  const ModelFile exported("test", folder.path("model"));
  EXPECT_TRUE(at::equal(value_of(exported.weights(), 0, name), value_of(newest, 0, name)));
  EXPECT_EQ(exported.ends(), std::vector<std::int64_t>{256});
  // It continues a text.
  const auto comm = comm::make_solo();
  const auto model = model::make_model(file.options(), {});
  Sessions sessions(*comm, *model, [&](int unit) { return newest.of_unit(unit); },
                    {.cache = {.pages = 4}});
  const std::vector<std::vector<std::int64_t>> prompts{{'w', 'o', 'r', 'd'}};
  EXPECT_EQ(generate(*comm, sessions, prompts, {.tokens = 5}).tokens[0].size(), 5U);
  // Sizes that no memory has are refused by their key.
  auto config = nlohmann::json::parse(folder.read("model/config.json"));
  config["intermediate_size"] = 2147483647;
  folder.write("model/config.json", config.dump());
  EXPECT_THAT([&] { ModelFile("test", folder.path("model")); },
              testing::ThrowsMessage<IoError>(testing::HasSubstr("(intermediate_size)")));
}

/// Ranks along tp have whole groups of heads and some words each; bf16 is that of matrices alone.
TEST(ModelWeights, ArePartsAndNarrow) {
  const train::ScratchFolder folder;
  trained_recipe(folder);
  const ModelFile file("test", folder.path("run"));
  const ModelWeights whole = file.weights();
  const ModelWeights half = file.weights({.tp_index = 1, .tp_ranks = 2});
  const char* const name = "layers.0.attention.wq.weight";
  const at::Tensor rows = value_of(whole, 1, name);
  EXPECT_TRUE(at::equal(value_of(half, 1, name), rows.narrow(0, 16, 16)));
  EXPECT_EQ(value_of(half, 0, "tok_embeddings.weight").size(0), 129);
  EXPECT_LT(half.bytes(), whole.bytes());
  const ModelWeights narrow = file.weights({.dtype = at::kBFloat16});
  EXPECT_TRUE(at::equal(value_of(narrow, 1, name), rows.to(at::kBFloat16)));
  EXPECT_EQ(value_of(narrow, 1, "layers.0.attention_norm.weight").scalar_type(), at::kFloat);
}

TEST(ModelWeights, OfOtherModelsAreRefused) {
  const train::ScratchFolder folder;
  train::Recipe recipe = train::small_recipe();
  recipe.training.steps = 1;
  recipe.parallelism.mask = "full";
  recipe.job.dump_folder = folder.path("run");
  recipe.checkpoint.enable = true;
  recipe.checkpoint.interval = 1;
  train::run(recipe);
  folder.write("run/recipe.toml", print_recipe(recipe));
  const auto refused = [](const std::string& path, const std::string& text) {
    EXPECT_THAT(error_of([&] { ModelFile("test", path); }), testing::HasSubstr(text));
  };
  refused(folder.path("run"), "trained with parallelism.mask full given; one with causal");
  refused(folder.path(),
          "has none of recipe.toml, manifest.json and config.json; the folder of a run");
  folder.write("config.json", R"({"model_type": "gemma2"})");
  refused(folder.path(), "llama, mistral, qwen2, qwen3, mixtral or qwen3_moe is required");
  folder.write("config.json",
               R"({"model_type": "armillary", "vocab_size": 257, "model": {"name": "dit"}})");
  refused(folder.path(),
          "test: model.name dit, which makes pictures, given; gpt, gpt2, llama or moe is required");
}

/// Sessions are refused that are longer than the model's positions or frequencies.
TEST(ModelWeights, AllowSomeLengths) {
  const auto error = [](const model::ModelOptions& options, std::int64_t prompt,
                        std::int64_t most) {
    return error_of([&] { check_length("test", options, prompt, most); });
  };
  EXPECT_EQ(error({.name = "gpt"}, 1'000'000, 2'000'000), "no error");
  EXPECT_EQ(error({.name = "gpt2", .max_seq_len = 20}, 10, 20), "no error");
  EXPECT_EQ(error({.name = "gpt2", .max_seq_len = 20}, 10, 21),
            "test: a session of 21 tokens for a model of fewer learned positions "
            "(model.max_seq_len); at most 20 are required");
  EXPECT_EQ(error({.name = "llama", .sliding_window = 32}, 10, 33), "no error");
  const std::string dynamic = "dynamic:factor=2,original=32";
  EXPECT_EQ(error({.name = "llama", .rope_scaling = dynamic}, 10, 32), "no error");
  EXPECT_THAT(error({.name = "llama", .rope_scaling = dynamic}, 33, 34),
              testing::HasSubstr("frequencies change with the length"));
  EXPECT_THAT(error({.name = "moe", .rope_scaling = dynamic}, 33, 34),
              testing::HasSubstr("frequencies change with the length"));
  const std::string longrope = "longrope:original=32,short=1;1,long=1;2";
  EXPECT_EQ(error({.name = "llama", .rope_scaling = longrope}, 33, 64), "no error");
  EXPECT_THAT(error({.name = "llama", .rope_scaling = longrope}, 32, 33),
              testing::HasSubstr("at most 32 are required"));
  EXPECT_EQ(
      error({.name = "llama", .rope_scaling = "longrope:original=32,short=1;2,long=1;2"}, 32, 33),
      "no error");
}

}  // namespace
}  // namespace armillary::serve
