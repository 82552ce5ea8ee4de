// gguf_model_test.cpp: keys and tensors of GGUF files as a llama, heads whose halves are taken
// apart, and what is refused by name.
#include "armillary/train/checkpoint/gguf_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/io/testing/gguf_bytes.h"
#include "armillary/model/registry.h"
#include "armillary/train/checkpoint/model_folder.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// Values first, first + 1, ..
std::vector<float> counted(std::size_t count, float first = 0) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

/// One layer, 2 query heads of 4 dims on one KV head, an MLP of 6, 5 words, tied.
io::GgufBytes small_model(const std::string& architecture = "llama") {
  io::GgufBytes file;
  file.add_text("general.architecture", architecture);
  file.add_text("general.name", "small");
  file.add_number("tokenizer.ggml.eos_token_id", 2);
  const auto key = [&](const std::string& name) { return architecture + "." + name; };
  file.add_number(key("block_count"), 1);
  file.add_number(key("context_length"), 64);
  file.add_number(key("embedding_length"), 8);
  file.add_number(key("feed_forward_length"), 6);
  file.add_number(key("attention.head_count"), 2);
  file.add_number(key("attention.head_count_kv"), 1);
  file.add_float(key("attention.layer_norm_rms_epsilon"), 1e-5F);
  file.add_float(key("rope.freq_base"), 50000);
  file.add_floats("token_embd.weight", {5, 8}, counted(40));
  file.add_floats("output_norm.weight", {8}, counted(8));
  for (const char* norm : {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"}) {
    file.add_floats(norm, {8}, counted(8));
  }
  file.add_floats("blk.0.attn_q.weight", {8, 8}, counted(64));
  file.add_floats("blk.0.attn_k.weight", {4, 8}, counted(32));
  file.add_floats("blk.0.attn_v.weight", {4, 8}, counted(32));
  file.add_floats("blk.0.attn_output.weight", {8, 8}, counted(64));
  file.add_floats("blk.0.ffn_gate.weight", {6, 8}, counted(48));
  file.add_floats("blk.0.ffn_up.weight", {6, 8}, counted(48));
  file.add_floats("blk.0.ffn_down.weight", {8, 6}, counted(48));
  return file;
}

/// A GGUF file in a folder of the test.
struct SavedModel {
  explicit SavedModel(const io::GgufBytes& file) { folder.write("m.gguf", file.bytes()); }

  std::string path() const { return folder.path("m.gguf"); }
  model::ModelOptions model() const { return read_gguf_model(io::GgufFile(path())); }

  ScratchFolder folder;
};

TEST(GgufModel, KeysAreTheSizes) {
  const model::ModelOptions model = SavedModel(small_model()).model();
  EXPECT_EQ(model.name, "llama");
  EXPECT_EQ(model.n_layers, 1);
  EXPECT_EQ(model.dim, 8);
  EXPECT_EQ(model.hidden_dim, 6);
  EXPECT_EQ(model.n_heads, 2);
  EXPECT_EQ(model.n_kv_heads, 1);
  EXPECT_EQ(model.head_dim, 0);
  EXPECT_EQ(model.norm_eps, 1e-5) << "as it was before it became an fp32";
  EXPECT_EQ(model.rope_theta, 50000);
  EXPECT_EQ(model.vocab_size, 5);
  EXPECT_TRUE(model.enable_weight_tying);
  EXPECT_EQ(model.rope_scaling, "none");

  io::GgufBytes more = small_model();
  more.add_floats("output.weight", {5, 8}, counted(40));
  more.add_number("llama.attention.key_length", 6);
  more.add_number("llama.attention.value_length", 6);
  more.add_text("llama.rope.scaling.type", "yarn");
  more.add_float("llama.rope.scaling.factor", 4);
  more.add_number("llama.rope.scaling.original_context_length", 16);
  EXPECT_FALSE(SavedModel(more).model().enable_weight_tying);
  EXPECT_EQ(SavedModel(more).model().head_dim, 6);
  EXPECT_EQ(SavedModel(more).model().rope_scaling, "yarn:factor=4,original=16");

  io::GgufBytes frequencies = small_model();
  frequencies.add_floats("rope_freqs.weight", {2}, {1, 0.1F});
  EXPECT_EQ(SavedModel(frequencies).model().rope_scaling,
            "longrope:original=2,short=1;0.1,long=1;0.1");
  EXPECT_TRUE(SavedModel(small_model("qwen2")).model().qkv_bias);
  EXPECT_TRUE(SavedModel(small_model("qwen3")).model().qk_norm);
}

/// Row i of half j of a head stands at 2 i + j in files of llama.
TEST(GgufModel, HalvesOfHeadsAreTakenApartForLlamaAlone) {
  const auto rows = [](const std::string& architecture, const char* parameter,
                       const model::GlobalRange& range) {
    const SavedModel saved(small_model(architecture));
    const io::GgufFile file(saved.path());
    std::vector<float> values(static_cast<std::size_t>(model::count_of_values(range.size)));
    read_gguf_parameter(file, read_gguf_model(file), parameter, range, values);
    return values;
  };
  const model::GlobalRange q = model::whole_of({8, 8});
  const char* const wq = "layers.0.attention.wq.weight";
  std::vector<float> first;  // of each row, whose values are 8 row, 8 row + 1, ..
  const std::vector<float> whole = rows("llama", wq, q);
  first.reserve(8);
  for (std::size_t row = 0; row < 8; ++row) first.push_back(whole[8 * row] / 8);
  EXPECT_THAT(first, ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  EXPECT_EQ(whole[15], 23) << "a row stays whole";
  EXPECT_EQ(rows("qwen2", wq, q), counted(64));
  EXPECT_EQ(rows("llama", "layers.0.attention.wv.weight", model::whole_of({4, 8})), counted(32));
  // A part, as a rank along tp has it.
  const model::GlobalRange head{.whole = {8, 8}, .begin = {4, 0}, .size = {4, 8}};
  EXPECT_EQ(rows("llama", wq, head), std::vector<float>(whole.begin() + 32, whole.end()));
  EXPECT_THAT(rows("llama", wq, {.whole = {8, 8}, .begin = {5, 2}, .size = {1, 3}}),
              ElementsAre(50, 51, 52));
}

TEST(GgufModel, FillsAStore) {
  const SavedModel saved(small_model());
  Recipe recipe = small_recipe();
  recipe.model = saved.model();
  Store store(*make_model(recipe), 1);
  load_parameters(saved.path(), recipe.model, store);
  for (const Piece& piece : store.pieces()) {
    EXPECT_EQ(piece.value.flatten()[1].item<float>(), 1) << piece.name;
  }
  Store wide(*make_model(recipe), 1, {},
             {.master = at::kDouble, .param = at::kDouble, .reduce = at::kDouble});
  load_parameters(saved.path(), recipe.model, wide);
  for (std::size_t i = 0; i < store.pieces().size(); ++i) {
    EXPECT_TRUE(at::equal(wide.pieces()[i].value, store.pieces()[i].value.to(at::kDouble)));
  }
  recipe.model.n_layers = 2;
  EXPECT_THAT([&] { load_parameters(saved.path(), recipe.model, store); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("m.gguf has model.n_layers = 1; 2, that of the recipe, is required")));
}

TEST(GgufModel, WhatIsNotObeyedIsRefusedByName) {
  const auto refused = [](const auto& change, const std::string& text) {
    io::GgufBytes file = small_model();
    change(file);
    const SavedModel saved(file);
    EXPECT_THAT([&] { saved.model(); },
                ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("m.gguf"), HasSubstr(text))));
  };
  refused([](auto& file) { file.add_number("llama.logit_scale", 2); },
          "llama.logit_scale = 2, which is not obeyed here");
  refused([](auto& file) { file.add_number("split.count", 2); }, "split.count = 2, which is not");
  refused([](auto& file) { file.add_number("llama.expert_count", 8); },
          "llama.expert_count = 8; 0 is required");
  refused([](auto& file) { file.add_number("llama.vocab_size", 6); },
          "llama.vocab_size = 6; 5, the rows of token_embd.weight, is required");
  refused([](auto& file) { file.add_number("llama.rope.dimension_count", 2); },
          "llama.rope.dimension_count = 2; 4, the size of a key, is required");
  refused([](auto& file) { file.add_text("llama.rope.scaling.type", "longrope"); },
          "llama.rope.scaling.type = 'longrope'; none, linear or yarn is required");
  refused([](auto& file) { file.keys.erase(file.keys.begin() + 3); },
          "has no llama.block_count; a whole number from 1");
  EXPECT_THAT([] { SavedModel(small_model("gemma")).model(); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("general.architecture = 'gemma'; llama, qwen2 or qwen3 is required")));
}

/// Without memory for the parameters, which these sizes would not have: 2^40 values and more.
TEST(GgufModel, SizesOfKeysAreComparedWithTensorsFirst) {
  const auto refused = [](const std::string& name, std::uint32_t size, const std::string& text) {
    io::GgufBytes file = small_model();
    const std::string key = io::gguf_text("llama." + name);
    std::erase_if(file.keys, [&](const std::string& whole) { return whole.starts_with(key); });
    file.add_number("llama." + name, size);
    const SavedModel saved(file);
    const model::ModelOptions model = saved.model();
    EXPECT_THAT(
        [&] { check_source(saved.path(), model, model::make_model(model, {})->parameters()); },
        ThrowsMessage<IoError>(AllOf(HasSubstr("m.gguf"), HasSubstr(text))));
  };
  refused("feed_forward_length", 2147483647,
          "tensor 'blk.0.ffn_gate.weight' is [6,8]; [2147483647,8] is required "
          "(llama.feed_forward_length)");
  refused("embedding_length", 1U << 20U,
          "tensor 'token_embd.weight' is [5,8]; [5,1048576] is required (llama.embedding_length)");
  refused("attention.head_count_kv", 2,
          "tensor 'blk.0.attn_k.weight' is [4,8]; [8,8] is required "
          "(llama.attention.head_count_kv, llama.attention.head_count)");
  refused("attention.key_length", 6,
          "tensor 'blk.0.attn_q.weight' is [8,8]; [12,8] is required "
          "(llama.attention.head_count, llama.attention.key_length)");
  refused("block_count", 4096, "has no tensor 'blk.1.attn_norm.weight'");
  io::GgufBytes other = small_model();
  other.add_floats("output.weight", {4, 8}, counted(32));
  const SavedModel saved(other);
  EXPECT_THAT(
      [&] {
        check_source(saved.path(), saved.model(),
                     model::make_model(saved.model(), {})->parameters());
      },
      ThrowsMessage<IoError>(HasSubstr(
          "tensor 'output.weight' is [4,8]; [5,8] is required (rows of token_embd.weight)")));
}

TEST(GgufModel, TensorsAreThoseOfTheModel) {
  const auto refused = [](const auto& change, const std::string& text) {
    io::GgufBytes file = small_model();
    change(file);
    const SavedModel saved(file);
    Recipe recipe = small_recipe();
    recipe.model = saved.model();
    Store store(*make_model(recipe), 1);
    EXPECT_THAT([&] { load_parameters(saved.path(), recipe.model, store); },
                ThrowsMessage<IoError>(HasSubstr(text)));
  };
  refused([](auto& file) { file.add_floats("blk.0.attn_q.bias", {8}, counted(8)); },
          "tensor 'blk.0.attn_q.bias' is not one of the recipe's model");
  const auto drop_last = [](io::GgufBytes& file) {
    file.tensors.pop_back();
    file.data.resize(file.data.size() - 48 * sizeof(float));
  };
  refused(drop_last, "has no tensor 'blk.0.ffn_down.weight'; all of the recipe's model");
  refused(
      [&](auto& file) {
        drop_last(file);
        file.add_floats("blk.0.ffn_down.weight", {6, 8}, counted(48));
      },
      "tensor 'blk.0.ffn_down.weight' is [6,8]; [8,6] is required");
}

}  // namespace
}  // namespace armillary::train
