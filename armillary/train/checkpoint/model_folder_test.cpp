// model_folder_test.cpp: model folders as transformers reads them: every bit back from one file or
// several, names of tensors, and configurations that do not fit the recipe.
#include "armillary/train/checkpoint/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/core/half_floats.h"
#include "armillary/model/registry.h"
#include "armillary/train/check_model.h"
#include "armillary/train/checkpoint/model_source.h"
#include "armillary/train/checkpoint/restore.h"
#include "armillary/train/estimate.h"
#include "armillary/train/evaluate.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

Recipe small_llama(bool tied = false) {
  Recipe recipe = small_recipe();
  recipe.model.name = "llama";
  recipe.model.multiple_of = 8;
  recipe.model.enable_weight_tying = tied;
  return recipe;
}

nlohmann::json config_of(const Recipe& recipe, FolderFormat format = FolderFormat::Hf) {
  return model_config(recipe.model, recipe.training.seq_len, format);
}

/// A replica of the recipe's model, drawn from `seed`.
struct DrawnReplica {
  DrawnReplica(const Recipe& recipe, std::int64_t seed) : store(*make_model(recipe), seed) {}

  /// Parameters by the names of the model.
  std::vector<io::TensorBytes> parameters() const {
    std::vector<io::TensorBytes> parameters;
    for (const StateTensor& tensor : state_of(store.pieces())) {
      io::TensorBytes bytes = tensor.saved();
      constexpr std::string_view kPrefix = "parameters/";
      if (!tensor.name.starts_with(kPrefix)) continue;
      bytes.info.name.erase(0, kPrefix.size());
      parameters.push_back(std::move(bytes));
    }
    return parameters;
  }

  Store store;
};

bool equal_parameters(const DrawnReplica& a, const DrawnReplica& b) {
  return std::ranges::equal(a.parameters(), b.parameters(), [](const auto& x, const auto& y) {
    return x.info.name == y.info.name && std::ranges::equal(x.bytes, y.bytes);
  });
}

TEST(ModelFolder, GivesBackEveryBitInOneFileOrSeveral) {
  for (const bool tied : {false, true}) {
    const Recipe recipe = small_llama(tied);
    const DrawnReplica written(recipe, 1);
    for (const FolderFormat format : {FolderFormat::Hf, FolderFormat::Armillary}) {
      for (const std::int64_t most : {kMostFileBytes, std::int64_t{20000}, std::int64_t{1}}) {
        const ScratchFolder folder;
        write_model_folder(folder.path("m"), format, config_of(recipe, format),
                           written.parameters(), most);
        EXPECT_EQ(std::filesystem::exists(folder.path("m/model.safetensors")),
                  most == kMostFileBytes);
        DrawnReplica read(recipe, 2);
        EXPECT_FALSE(equal_parameters(read, written));
        load_parameters(folder.path("m"), recipe.model, read.store);
        EXPECT_TRUE(equal_parameters(read, written)) << tied << " in files of " << most;
      }
    }
  }
}

/// gpt2 with its names, and a vocabulary that is not that of bytes.
TEST(ModelFolder, HasEveryParameterOfGpt2AndAnyVocabulary) {
  Recipe recipe = small_recipe();
  recipe.model.name = "gpt2";
  recipe.model.enable_weight_tying = true;
  recipe.model.max_seq_len = 60;
  recipe.model.vocab_size = 301;
  const DrawnReplica written(recipe, 1);
  const ScratchFolder folder;
  const nlohmann::json config = config_of(recipe, FolderFormat::Armillary);
  EXPECT_EQ(config["vocab_size"], 301);
  EXPECT_EQ(config["model"]["max_seq_len"], 60);
  write_model_folder(folder.path("m"), FolderFormat::Armillary, config, written.parameters());
  DrawnReplica read(recipe, 2);
  load_parameters(folder.path("m"), recipe.model, read.store);
  EXPECT_TRUE(equal_parameters(read, written));

  EXPECT_THAT([&] { config_of(recipe); },
              ThrowsMessage<InvalidArgument>(
                  "export: model.name gpt2 in format hf; llama or moe, which transformers has too, "
                  "is required; nearest: --format armillary"));
  const auto refused = [&](const auto& change, const std::string& text) {
    Recipe other = recipe;
    change(other.model);
    EXPECT_THAT([&] { load_parameters(folder.path("m"), other.model, read.store); },
                ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  refused([](model::ModelOptions& model) { model.vocab_size = 257; },
          "has model.vocab_size = 301; 257, that of the recipe, is required");
  refused([](model::ModelOptions& model) { model.max_seq_len = 50; },
          "has model.max_seq_len = 60; 50, that of the recipe, is required");
}

/// Each expert is a tensor in folders of transformers, and one of many here.
TEST(ModelFolder, HasTheExpertsOfMixtralAndQwen3Moe) {
  Recipe recipe = small_llama();
  recipe.model.name = "moe";
  recipe.model.num_experts = 3;
  recipe.model.moe_inter_dim = 12;
  for (const bool is_qwen : {false, true}) {
    recipe.model.qk_norm = is_qwen;
    const DrawnReplica written(recipe, 1);
    for (const FolderFormat format : {FolderFormat::Hf, FolderFormat::Armillary}) {
      const ScratchFolder folder;
      write_model_folder(folder.path("m"), format, config_of(recipe, format), written.parameters(),
                         20000);
      DrawnReplica read(recipe, 2);
      load_parameters(folder.path("m"), recipe.model, read.store);
      EXPECT_TRUE(equal_parameters(read, written));
      Recipe other = recipe;
      other.model.top_k = 1;
      EXPECT_THAT([&] { load_parameters(folder.path("m"), other.model, read.store); },
                  ThrowsMessage<InvalidArgument>(
                      HasSubstr("has model.top_k = 2; 1, that of the recipe, is required")));
      other.model.top_k = 2;
      other.model.router_aux_loss_coef = 0;
      EXPECT_NO_THROW(load_parameters(folder.path("m"), other.model, read.store));
      if (format == FolderFormat::Armillary) continue;
      const auto index = nlohmann::json::parse(folder.read("m/model.safetensors.index.json"));
      const std::string block =
          std::string("model.layers.1.") + (is_qwen ? "mlp" : "block_sparse_moe");
      EXPECT_TRUE(index["weight_map"].contains(block + ".gate.weight"));
      EXPECT_TRUE(index["weight_map"].contains(
          block + (is_qwen ? ".experts.2.gate_proj.weight" : ".experts.2.w1.weight")));
      const auto config = nlohmann::json::parse(folder.read("m/config.json"));
      EXPECT_EQ(config["model_type"], is_qwen ? "qwen3_moe" : "mixtral");
    }
  }
  recipe.model.num_shared_experts = 1;
  EXPECT_THAT([&] { config_of(recipe); }, ThrowsMessage<InvalidArgument>(HasSubstr(
                                              "export: model.num_shared_experts 1 in format "
                                              "hf; a softmax router")));
}

TEST(ModelFolder, FilesAreNumberedAndSmallEnough) {
  const ScratchFolder folder;
  const Recipe recipe = small_llama();
  const DrawnReplica written(recipe, 1);
  constexpr std::int64_t kMost = 40000;
  write_model_folder(folder.path("m"), FolderFormat::Hf, config_of(recipe), written.parameters(),
                     kMost);
  const auto index = nlohmann::json::parse(folder.read("m/model.safetensors.index.json"));
  std::int64_t total = 0;
  for (const io::TensorBytes& tensor : written.parameters()) total += tensor.info.bytes();
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_EQ(index["weight_map"]["model.embed_tokens.weight"], "model-00001-of-00005.safetensors");
  for (const auto& entry : std::filesystem::directory_iterator(folder.path("m"))) {
    EXPECT_LT(entry.file_size(), kMost + 4096) << entry.path();
  }
}

TEST(ModelFolder, NamesAreThoseOfTransformers) {
  const auto name = [](const std::string& ours) { return folder_name(ours, "llama"); };
  EXPECT_EQ(name("tok_embeddings.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(name("output.weight"), "lm_head.weight");
  EXPECT_EQ(name("norm.weight"), "model.norm.weight");
  EXPECT_EQ(name("layers.11.attention_norm.weight"), "model.layers.11.input_layernorm.weight");
  EXPECT_EQ(name("layers.0.ffn_norm.weight"), "model.layers.0.post_attention_layernorm.weight");
  EXPECT_EQ(name("layers.0.attention.wq.weight"), "model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(name("layers.0.attention.wo.weight"), "model.layers.0.self_attn.o_proj.weight");
  EXPECT_EQ(name("layers.0.attention.wq.bias"), "model.layers.0.self_attn.q_proj.bias");
  EXPECT_EQ(name("layers.0.attention.k_norm.weight"), "model.layers.0.self_attn.k_norm.weight");
  EXPECT_EQ(name("layers.0.feed_forward.w1.weight"), "model.layers.0.mlp.gate_proj.weight");
  EXPECT_EQ(name("layers.0.feed_forward.w2.weight"), "model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ(name("layers.0.feed_forward.w3.weight"), "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(folder_name("norm.weight", "armillary"), "norm.weight");
  const std::string router = "layers.3.moe.router.gate.weight";
  EXPECT_EQ(folder_name(router, "mixtral"), "model.layers.3.block_sparse_moe.gate.weight");
  EXPECT_EQ(folder_name(router, "qwen3_moe"), "model.layers.3.mlp.gate.weight");
}

/// config.json of `recipe` with one key changed, or left out if `value` is discarded.
nlohmann::json changed_config(const Recipe& recipe, const std::string& key,
                              const nlohmann::json& value) {
  nlohmann::json config = config_of(recipe);
  if (value.is_discarded()) {
    config.erase(key);
  } else {
    config[key] = value;
  }
  return config;
}

/// Compares a config with the model of a recipe, as reading a folder does.
void check_config(const nlohmann::json& config, const Recipe& recipe) {
  check_same_model("c.json", read_model_config("c.json", config), recipe.model);
}

TEST(ModelConfig, WhatDecidesTheResultMustBeTheRecipes) {
  const Recipe recipe = small_llama();
  const auto refused = [&](const std::string& key, const nlohmann::json& value,
                           const std::string& text) {
    EXPECT_THAT(
        [&] { check_config(changed_config(recipe, key, value), recipe); },
        ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("model: c.json has "), HasSubstr(text))))
        << key;
  };
  const nlohmann::json none(nlohmann::json::value_t::discarded);
  check_config(config_of(recipe), recipe);
  refused("intermediate_size", 64, "model.hidden_dim = 64; 88, that of the recipe, is required");
  refused("hidden_size", none, "no hidden_size; a whole number from 1 to 2147483647 is required");
  refused("vocab_size", 32000, "model.vocab_size = 32000; 257");
  Recipe wide = recipe;
  wide.model.vocab_size = 32000;
  check_config(changed_config(recipe, "vocab_size", 32000), wide);
  refused("hidden_act", "gelu", "hidden_act = \"gelu\"; \"silu\"");
  refused("attention_bias", true, "attention_bias = true; false");
  refused("tie_word_embeddings", true, "model.enable_weight_tying = true; false");
  refused("model_type", "gemma",
          "model_type = \"gemma\"; llama, mistral, qwen2, qwen3, mixtral or");
  refused("rope_theta", 7.0, "rope_theta = 7.0; 10000, that of rope_parameters, is required");
  // Left out, these have the defaults of transformers.
  for (const char* key : {"mlp_bias", "hidden_act", "rope_scaling", "head_dim", "rope_theta",
                          "attention_bias", "architectures"}) {
    EXPECT_NO_THROW(check_config(changed_config(recipe, key, none), recipe)) << key;
  }
  EXPECT_THAT([&] { check_config(config_of(recipe), small_recipe()); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("model.name = \"llama\"; \"gpt\", that of the recipe")));
}

TEST(ModelConfig, ArmillarysHasTheKeysOfTheModel) {
  const Recipe recipe = small_recipe();
  const nlohmann::json whole = config_of(recipe, FolderFormat::Armillary);
  Recipe other = recipe;
  other.model.n_layers = 3;
  EXPECT_THAT([&] { check_config(whole, other); },
              ThrowsMessage<InvalidArgument>(HasSubstr("c.json has model.n_layers = 2; 3, that")));
  const auto refused = [&](const auto& change, const std::string& text) {
    nlohmann::json config = whole;
    change(config);
    EXPECT_THAT([&] { check_config(config, recipe); },
                ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  refused([](auto& config) { config["model"]["name"] = "gtp"; },
          "model.name = \"gtp\"; gpt, gpt2, llama, moe or dit is required");
  refused([](auto& config) { config["model"]["max_seq_len"] = 3; },
          "model.max_seq_len, which gpt has not");
  refused([](auto& config) { config["model"]["dim"] = "3"; }, "model.dim = \"3\"; a whole number");
  refused([](auto& config) { config["model"]["n_layers"] = 5000; },
          "model.n_layers = 5000; a value between 1 and 4096 is required");
  refused([](auto& config) { config["scale"] = 3; }, "has scale, which is not obeyed here");
  refused(
      [](auto& config) {
        config["model"] = {{"name", "moe"}, {"score_func", "soft"}};
      },
      "model.score_func = 'soft'; softmax or sigmoid is required");
  refused(
      [](auto& config) {
        config["model"] = {{"name", "moe"}, {"balance_over", ""}};
      },
      "model.balance_over = ''; sequence or batch is required");
  // Keys that an older version did not have.
  nlohmann::json older = whole;
  older["model"].erase("rope_theta");
  EXPECT_NO_THROW(check_config(older, recipe));
}

/// Folders of other programs have floats of 16 bits.
TEST(ModelFolder, FloatsOfSixteenBitsAreWidened) {
  const Recipe recipe = small_llama();
  const DrawnReplica drawn(recipe, 1);
  const ScratchFolder folder;
  for (const io::TensorDtype dtype : {io::TensorDtype::F16, io::TensorDtype::BF16}) {
    const std::string name = folder.path(std::string(to_string(dtype)));
    std::vector<io::TensorBytes> narrow = drawn.parameters();
    std::vector<std::vector<std::uint16_t>> values(narrow.size());
    for (std::size_t i = 0; i < narrow.size(); ++i) {
      const std::size_t count = narrow[i].bytes.size() / sizeof(float);
      const auto* const wide = reinterpret_cast<const float*>(narrow[i].bytes.data());
      for (std::size_t k = 0; k < count; ++k) {
        values[i].push_back(dtype == io::TensorDtype::F16 ? Fp16(wide[k]).bits
                                                          : Bf16(wide[k]).bits);
      }
      narrow[i].info.dtype = dtype;
      narrow[i].bytes = std::as_bytes(std::span(values[i]));
    }
    write_model_folder(name, FolderFormat::Hf, config_of(recipe), narrow);
    DrawnReplica read(recipe, 2);
    load_parameters(name, recipe.model, read.store);
    const std::vector<io::TensorBytes> got = read.parameters();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto* const wide = reinterpret_cast<const float*>(got[i].bytes.data());
      for (std::size_t k = 0; k < values[i].size(); k += 97) {
        const std::uint16_t bits =
            dtype == io::TensorDtype::F16 ? Fp16(wide[k]).bits : Bf16(wide[k]).bits;
        ASSERT_EQ(bits, values[i][k]) << got[i].info.name << ' ' << k;
      }
    }
    EXPECT_FALSE(equal_parameters(read, drawn));
  }
}

TEST(ModelFolder, TensorsThatDoNotFitAreRefusedByName) {
  const ScratchFolder folder;
  const Recipe recipe = small_llama();
  DrawnReplica replica(recipe, 1);
  const auto refused = [&](const std::string& file, std::vector<io::TensorBytes> parameters,
                           const std::string& text) {
    write_model_folder(folder.path(file), FolderFormat::Hf, config_of(recipe),
                       std::move(parameters));
    EXPECT_THAT([&] { load_parameters(folder.path(file), recipe.model, replica.store); },
                ThrowsMessage<IoError>(HasSubstr(text)));
  };
  std::vector<io::TensorBytes> parameters = replica.parameters();
  parameters.erase(std::ranges::find(parameters, "layers.1.attention.wq.weight",
                                     [](const auto& p) { return p.info.name; }));
  refused("missing", parameters, "has no tensor 'model.layers.1.self_attn.q_proj.weight'");
  parameters = replica.parameters();
  std::swap(parameters[0].info.shape[0], parameters[0].info.shape[1]);
  refused("shape", parameters, "tensor 'model.embed_tokens.weight' is F32 [32,257]; F32 [257,32]");
  parameters = replica.parameters();
  parameters[0].info.dtype = io::TensorDtype::I32;
  refused("dtype", parameters, "tensor 'model.embed_tokens.weight' is I32 [257,32]; F32 [257,32]");
  parameters = replica.parameters();
  parameters.push_back({{"layers.0.attention.wq.bias", io::TensorDtype::F32, {0}}, {}});
  refused("more", parameters, "tensor 'model.layers.0.self_attn.q_proj.bias' is not one of");
}

/// Files of others have buffers of old versions and, beside tied weights, a copy of the embedding;
/// files of Armillary have neither.
TEST(ModelFolder, TensorsThatTransformersLeavesOutAreLeftOut) {
  const Recipe recipe = small_llama(/*tied=*/true);
  const DrawnReplica written(recipe, 1);
  std::vector<io::TensorBytes> parameters = written.parameters();
  io::TensorBytes copy = parameters[0];
  EXPECT_EQ(copy.info.name, "tok_embeddings.weight");
  copy.info.name = "output.weight";
  parameters.push_back(copy);
  constexpr std::array<float, 2> kFrequencies{1, 0.01F};
  parameters.push_back(
      {{"layers.0.self_attn.rotary_emb.inv_freq", io::TensorDtype::F32, {kFrequencies.size()}},
       std::as_bytes(std::span(kFrequencies))});
  DrawnReplica read(recipe, 2);
  for (const std::int64_t most : {kMostFileBytes, std::int64_t{1}}) {
    const ScratchFolder folder;
    write_model_folder(folder.path("hf"), FolderFormat::Hf, config_of(recipe), parameters, most);
    const auto file =
        folder.read(most == 1 ? "hf/model.safetensors.index.json" : "hf/model.safetensors");
    EXPECT_THAT(file, HasSubstr("\"lm_head.weight\""));
    EXPECT_THAT(file, HasSubstr("\"model.layers.0.self_attn.rotary_emb.inv_freq\""));
    load_parameters(folder.path("hf"), recipe.model, read.store);
    EXPECT_TRUE(equal_parameters(read, written)) << most;
    write_model_folder(folder.path("own"), FolderFormat::Armillary,
                       config_of(recipe, FolderFormat::Armillary), parameters, most);
    EXPECT_THAT([&] { load_parameters(folder.path("own"), recipe.model, read.store); },
                ThrowsMessage<IoError>(HasSubstr("tensor 'layers.0.self_attn.rotary_emb.inv_freq' "
                                                 "is not one of the recipe's model")));
  }
}

/// The step of a bias is training; a bias or none is another model.
TEST(ModelFolder, TheStepOfABiasMayChange) {
  Recipe recipe = small_llama();
  recipe.model.name = "moe";
  recipe.model.num_experts = 3;
  recipe.model.moe_inter_dim = 12;
  recipe.model.load_balance_coeff = 0.01;
  const DrawnReplica written(recipe, 1);
  const ScratchFolder folder;
  write_model_folder(folder.path("m"), FolderFormat::Armillary,
                     config_of(recipe, FolderFormat::Armillary), written.parameters());
  Recipe other = recipe;
  other.model.load_balance_coeff = 0.002;
  DrawnReplica read(other, 2);
  load_parameters(folder.path("m"), other.model, read.store);
  EXPECT_TRUE(equal_parameters(read, written));
  other.model.load_balance_coeff = 0;
  EXPECT_THAT([&] { load_parameters(folder.path("m"), other.model, read.store); },
              ThrowsMessage<InvalidArgument>(HasSubstr(
                  "has model.load_balance_coeff = 0.01; 0.0, that of the recipe, is required")));
}

/// Every verb compares sizes with the file before parameters have memory, on all ranks.
TEST(ModelFolder, SizesThatNoMemoryHasAreRefusedByTheirKey) {
  const ScratchFolder folder;
  Recipe recipe = small_llama();
  write_model_folder(folder.path("m"), FolderFormat::Hf,
                     changed_config(recipe, "intermediate_size", 2147483647),
                     DrawnReplica(recipe, 1).parameters());
  recipe.model.hidden_dim = 2147483647;
  recipe.parallelism.context_parallel_degree = 2;
  const PackedText data = words(recipe.training.seq_len);
  const auto refused = [&](const std::function<void()>& call) {
    EXPECT_THAT(call, ThrowsMessage<IoError>(HasSubstr(
                          "tensor 'model.layers.0.mlp.gate_proj.weight' is F32 [88,32]; F32 "
                          "[2147483647,32] is required, or F16 or BF16 (intermediate_size)")));
  };
  refused([&] { train(recipe, data, {.init_from = folder.path("m")}); });
  refused([&] { evaluate(recipe, data, {.init_from = folder.path("m")}); });
  refused([&] {
    comm::run_ranks(2, [&](comm::Communicator& comm) {
      const auto make = [](const Recipe& of) { return make_model(of); };
      check_model(comm, make, data, recipe, folder.path("m"));
    });
  });
}

/// Experts are a tensor each in one format, and the first dim in the other.
TEST(ModelFolder, SizesOfExpertsAreRefusedByTheirKey) {
  Recipe recipe = small_llama();
  recipe.model.name = "moe";
  recipe.model.num_experts = 3;
  recipe.model.moe_inter_dim = 12;
  const DrawnReplica written(recipe, 1);
  const auto refused = [&](FolderFormat format, const nlohmann::json& changes,
                           const std::string& text) {
    const ScratchFolder folder;
    nlohmann::json config = config_of(recipe, format);
    config.merge_patch(changes);
    write_model_folder(folder.path("m"), format, config, written.parameters());
    const model::ModelOptions model = open_model_source(folder.path("m"))->model();
    EXPECT_THAT(
        [&] { check_source(folder.path("m"), model, model::make_model(model, {})->parameters()); },
        ThrowsMessage<IoError>(HasSubstr(text)));
  };
  refused(FolderFormat::Hf, {{"num_local_experts", 2000000000}},
          "gate.weight' is F32 [3,32]; F32 [2000000000,32] is required, or F16 or BF16 "
          "(num_local_experts)");
  refused(FolderFormat::Hf, {{"intermediate_size", 2000000000}},
          "experts.0.w1.weight' is F32 [12,32]; F32 [2000000000,32] is required, or F16 or BF16 "
          "(intermediate_size)");
  refused(FolderFormat::Armillary, {{"model", {{"moe_inter_dim", 13}}}},
          "tensor 'layers.0.moe.experts.w1' is F32 [3,12,32]; F32 [3,13,32] is required, or F16 or "
          "BF16 (model.moe_inter_dim)");
}

}  // namespace
}  // namespace armillary::train
