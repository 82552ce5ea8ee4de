// hf_config_test.cpp: configs as they are published, there and back, every scaling and window, and
// what is refused by name.
#include "armillary/train/checkpoint/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "armillary/core/error.h"
#include "armillary/core/json_text.h"
#include "armillary/model/registry.h"

namespace armillary::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

nlohmann::json parsed(const std::string& text) {
  const JsonRead read = read_json_text(text);
  EXPECT_FALSE(read.fault);
  return read.value;
}

/// Sizes of a small model, in front of what a test adds.
nlohmann::json small_config(const std::string& family, const std::string& more = "{}") {
  nlohmann::json config = parsed(
      R"({"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300,
          "max_position_embeddings": 128, "rms_norm_eps": 1e-05})");
  config["model_type"] = family;
  config.update(parsed(more));
  return config;
}

model::ModelOptions read_small(const std::string& family, const std::string& more = "{}") {
  return read_hf_config("c.json", small_config(family, more));
}

void expect_refused(const std::string& family, const std::string& more, const std::string& text) {
  EXPECT_THAT([&] { read_small(family, more); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("model: c.json"), HasSubstr(text))))
      << more;
}

// Published configs, some keys without effect left out.
constexpr const char* kSmolLm2 = R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu",
  "hidden_size": 576, "initializer_range": 0.041666666666666664, "intermediate_size": 1536,
  "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30,
  "num_key_value_heads": 3, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
  "use_cache": true, "vocab_size": 49152})";
constexpr const char* kLlama31 = R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
  "intermediate_size": 14336, "max_position_embeddings": 131072, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": false, "vocab_size": 128256})";
constexpr const char* kMistral = R"({"architectures": ["MistralForCausalLM"], "hidden_act": "silu",
  "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
  "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
  "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 32000})";
constexpr const char* kQwen2 = R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
  "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768,
  "max_window_layers": 21, "model_type": "qwen2", "num_attention_heads": 14,
  "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
  "use_sliding_window": false, "vocab_size": 151936})";
constexpr const char* kQwen3 = R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
  "head_dim": 128, "hidden_size": 1024, "intermediate_size": 3072,
  "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
  "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936})";
constexpr const char* kMixtral = R"({"architectures": ["MixtralForCausalLM"],
  "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 4096,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral",
  "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
  "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 32000})";
constexpr const char* kQwen3Moe = R"({"architectures": ["Qwen3MoeForCausalLM"],
  "attention_bias": false, "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
  "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
  "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
  "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
  "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06,
  "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
  "sliding_window": null, "tie_word_embeddings": false, "use_sliding_window": false,
  "vocab_size": 151936})";

TEST(HfConfig, PublishedConfigsAreModelsOfTheirSizes) {
  const auto read = [](const char* text) { return read_hf_config("c.json", parsed(text)); };
  const model::ModelOptions smol = read(kSmolLm2);
  EXPECT_EQ(smol.n_kv_heads, 3);
  EXPECT_TRUE(smol.enable_weight_tying);
  EXPECT_EQ(smol.rope_theta, 100000);
  EXPECT_EQ(model::model_cost(smol, {}).parameters, 134515008);

  const model::ModelOptions llama = read(kLlama31);
  EXPECT_EQ(llama.rope_scaling, "llama3:factor=8,original=8192,low=1,high=4");
  EXPECT_EQ(model::model_cost(llama, {}).parameters, 8030261248);

  const model::ModelOptions mistral = read(kMistral);
  EXPECT_EQ(mistral.sliding_window, 4096);
  EXPECT_EQ(model::model_cost(mistral, {}).parameters, 7241732096);

  const model::ModelOptions qwen2 = read(kQwen2);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_EQ(qwen2.sliding_window, 0);
  EXPECT_EQ(model::model_cost(qwen2, {}).parameters, 494032768);

  const model::ModelOptions qwen3 = read(kQwen3);
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_EQ(model::model_cost(qwen3, {}).parameters, 596049920);

  const model::ModelOptions mixtral = read(kMixtral);
  EXPECT_EQ(mixtral.name, "moe");
  EXPECT_EQ(mixtral.top_k, 2);
  EXPECT_TRUE(mixtral.route_norm);
  EXPECT_EQ(model::model_cost(mixtral, {}).parameters, 46702792704);

  const model::ModelOptions qwen3_moe = read(kQwen3Moe);
  EXPECT_TRUE(qwen3_moe.qk_norm);
  EXPECT_EQ(qwen3_moe.num_experts, 128);
  EXPECT_EQ(qwen3_moe.moe_inter_dim, 768);
  EXPECT_EQ(model::model_cost(qwen3_moe, {}).parameters, 30532122624);
  // The config that is written is read as the same model.
  for (const char* text : {kSmolLm2, kLlama31, kMistral, kQwen2, kQwen3, kMixtral, kQwen3Moe}) {
    const model::ModelOptions model = read(text);
    const nlohmann::json config = hf_config(model, 64);
    EXPECT_EQ(config["architectures"], parsed(text)["architectures"]);
    const model::ModelOptions again = read_hf_config("again", config);
    EXPECT_EQ(again.rope_scaling, model.rope_scaling) << text;
    EXPECT_EQ(again.sliding_window, model.sliding_window) << text;
    EXPECT_EQ(again.qkv_bias, model.qkv_bias) << text;
    EXPECT_EQ(again.qk_norm, model.qk_norm) << text;
    EXPECT_EQ(again.head_width(), model.head_width()) << text;
    EXPECT_EQ(again.num_experts, model.num_experts) << text;
    EXPECT_EQ(again.top_k, model.top_k) << text;
    EXPECT_EQ(again.moe_inter_dim, model.moe_inter_dim) << text;
    EXPECT_EQ(again.route_norm, model.route_norm) << text;
    EXPECT_EQ(again.router_aux_loss_coef, model.router_aux_loss_coef) << text;
  }
}

TEST(HfConfig, EveryScalingIsReadAndWritten) {
  const std::string ones = "[1,1,1,1,1,1,1,1]";
  const std::string twos = "[2,2,2,2,2,2,2,2]";
  const auto scaling = [](const std::string& object) {
    return read_small("llama", R"({"rope_scaling": )" + object + "}").rope_scaling;
  };
  const std::string longrope = R"("short_factor": )" + ones + R"(, "long_factor": )" + twos;
  const std::pair<std::string, std::string> cases[] = {
      {R"({"type": "linear", "factor": 4})", "linear:factor=4"},
      {R"({"rope_type": "dynamic", "factor": 2.0})", "dynamic:factor=2,original=128"},
      {R"({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32})",
       "yarn:factor=4,original=32"},
      {R"({"rope_type": "yarn", "factor": 4, "beta_fast": 16, "beta_slow": 2, "truncate": false,
           "attention_factor": 1.5, "original_max_position_embeddings": 32})",
       "yarn:factor=4,original=32,attention=1.5,beta_fast=16,beta_slow=2,truncate=false"},
      // 0.1 ln 1 + 1 = 1 whatever the scales, for factor 1.
      {R"({"rope_type": "yarn", "factor": 1, "mscale": 0.7, "mscale_all_dim": 1.0})",
       "yarn:factor=1,original=128,attention=1"},
      {R"({"type": "su", "original_max_position_embeddings": 32, )" + longrope + "}",
       "longrope:factor=4,original=32,short=1;1;1;1;1;1;1;1,long=2;2;2;2;2;2;2;2"},
      {R"({"rope_type": "default"})", "none"}};
  for (const auto& [object, text] : cases) {
    EXPECT_EQ(scaling(object), text) << object;
    model::ModelOptions model = read_small("llama");
    model.rope_scaling = text;
    EXPECT_EQ(read_hf_config("c.json", hf_config(model, 16)).rope_scaling, text) << object;
  }
  // Version 5 has the base inside; some have the first length outside.
  const model::ModelOptions five = read_small(
      "llama", R"({"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 50}})");
  EXPECT_EQ(five.rope_scaling, "linear:factor=2");
  EXPECT_EQ(five.rope_theta, 50);
  EXPECT_EQ(read_small("llama", R"({"original_max_position_embeddings": 16,
                                    "rope_scaling": {"type": "yarn", "factor": 8}})")
                .rope_scaling,
            "yarn:factor=8,original=16");
}

TEST(HfConfig, WindowsAreOfAllLayersOrNone) {
  EXPECT_EQ(read_small("mistral").sliding_window, 4096) << "the default of transformers";
  EXPECT_EQ(read_small("mistral", R"({"sliding_window": null})").sliding_window, 0);
  EXPECT_EQ(read_small("mistral", R"({"sliding_window": 7})").sliding_window, 7);
  const std::string uses = R"({"use_sliding_window": true, "sliding_window": 9, )";
  EXPECT_EQ(read_small("qwen2", uses + R"("max_window_layers": 0})").sliding_window, 9);
  EXPECT_EQ(read_small("qwen2", uses + R"("max_window_layers": 2})").sliding_window, 0);
  EXPECT_EQ(read_small("qwen3", uses + R"("head_dim": 16,
                "layer_types": ["sliding_attention", "sliding_attention"]})")
                .sliding_window,
            9);
  expect_refused("qwen2", uses + R"("max_window_layers": 1})",
                 "max_window_layers = 1; one kind of attention in all layers");
  expect_refused("qwen2", uses + R"("layer_types": ["full_attention", "sliding_attention"]})",
                 "one kind of attention in all layers");
  expect_refused("qwen2", R"({"layer_types": ["sliding_attention", "sliding_attention"]})",
                 "use_sliding_window; true, as layer_types say, is required");
  expect_refused("qwen2", R"({"layer_types": ["full_attention"]})", "for each layer is required");
  expect_refused("llama", R"({"sliding_window": 7})",
                 "sliding_window = 7, which is not obeyed here");
}

TEST(HfConfig, ExpertsAreInEveryLayer) {
  const std::string theta = R"({"rope_theta": 10000, )";
  const model::ModelOptions mixtral = read_small("mixtral", theta + R"("sliding_window": 7})");
  EXPECT_EQ(mixtral.num_experts, 8) << "the defaults of transformers";
  EXPECT_EQ(mixtral.top_k, 2);
  EXPECT_EQ(mixtral.moe_inter_dim, 96);
  EXPECT_EQ(mixtral.sliding_window, 7);
  EXPECT_EQ(read_small("mixtral", theta + R"("head_dim": null})").sliding_window, 0);
  const model::ModelOptions qwen =
      read_small("qwen3_moe", R"({"moe_intermediate_size": 24, "num_local_experts": 10})");
  EXPECT_EQ(qwen.num_experts, 10) << "as version 5 writes it";
  EXPECT_EQ(qwen.top_k, 8);
  EXPECT_EQ(qwen.moe_inter_dim, 24);
  EXPECT_FALSE(qwen.route_norm);
  EXPECT_EQ(qwen.head_width(), 16);
  EXPECT_EQ(read_small("qwen3_moe", R"({"use_sliding_window": true, "sliding_window": 9})")
                .sliding_window,
            9);
  expect_refused("qwen3_moe", R"({"mlp_only_layers": [0]})", "mlp_only_layers = [0]; [] is");
  expect_refused("qwen3_moe", R"({"decoder_sparse_step": 2})", "decoder_sparse_step = 2; 1 is");
  expect_refused("qwen3_moe", R"({"num_experts": 6, "num_local_experts": 7})",
                 "num_local_experts = 7; 6 is required");
  expect_refused("qwen3_moe", R"({"use_sliding_window": true, "max_window_layers": 1})",
                 "max_window_layers = 1; 0 is required");
  expect_refused("qwen3_moe", R"({"shared_expert_intermediate_size": 8})",
                 "shared_expert_intermediate_size = 8, which is not obeyed");
  expect_refused("mixtral", theta + R"("router_jitter_noise": 0.1})",
                 "router_jitter_noise = 0.1; 0 is required");
  expect_refused("mixtral", theta + R"("num_experts_per_tok": 9})", "model.top_k 9");
  expect_refused("mixtral", theta + R"("router_aux_loss_coef": -1})",
                 "router_aux_loss_coef = -1; a number from 0 on");
  expect_refused("mixtral", "{}", "has no rope_theta; a number above 0 is required");
  expect_refused("qwen2_moe", "{}", "model_type = \"qwen2_moe\"");
}

TEST(HfConfig, WhatIsNotObeyedIsRefusedByName) {
  expect_refused("llama", R"({"quantization_config": {"bits": 4}})",
                 "quantization_config = {\"bits\":4}, which is not obeyed here");
  expect_refused("llama", R"({"logit_scale": 2})", "logit_scale = 2, which is not obeyed");
  expect_refused("llama", R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor = 0.5; 1 is");
  expect_refused("llama", R"({"attention_dropout": 0.1})", "attention_dropout = 0.1; 0 is");
  expect_refused("llama", R"({"mlp_bias": true})", "mlp_bias = true; false is required");
  expect_refused("llama", R"({"architectures": ["LlamaForSequenceClassification"]})",
                 "[\"LlamaForCausalLM\"] is required");
  expect_refused("gemma2", "{}",
                 "model_type = \"gemma2\"; llama, mistral, qwen2, qwen3, mixtral or qwen3_moe");
  expect_refused("llama", R"({"num_attention_heads": 0})", "num_attention_heads = 0; a whole");
  expect_refused("llama", R"({"num_key_value_heads": 3})", "model.n_kv_heads 3");
  expect_refused("llama", R"({"num_hidden_layers": 5000})", "model.n_layers = 5000");
  expect_refused(
      "llama", R"({"rope_scaling": {"type": "mrope"}})",
      "rope_scaling.type = \"mrope\"; default, linear, dynamic, llama3, yarn or longrope");
  expect_refused("llama", R"({"rope_scaling": {"type": "linear", "factor": 2, "beta_fast": 3}})",
                 "rope_scaling.beta_fast = 3, which linear does not obey");
  expect_refused("llama", R"({"rope_scaling": {"type": "linear"}})",
                 "rope_scaling.factor = null; a number is required");
  expect_refused("llama", R"({"rope_scaling": {"type": "linear", "factor": 0.5}})",
                 "'0.5' given; a number from 1 on");
  expect_refused("llama", R"({"rope_scaling": {"type": "linear", "factor": 2},
                              "rope_parameters": {"rope_type": "linear", "factor": 3}})",
                 "linear:factor=2, rope_parameters say linear:factor=3; the same is required");
  expect_refused("llama", R"({"rope_scaling": {"type": "longrope", "short_factor": [1],
                              "long_factor": [1]}})",
                 "1 divisors given; 8, half of a head of 16");
  // No value and no effect: nothing to obey.
  EXPECT_NO_THROW(read_small("llama", R"({"quantization_config": null, "use_cache": true})"));
}

TEST(HfConfig, ModelsThatTransformersHasNotAreNotWritten) {
  model::ModelOptions model = read_small("llama");
  model.qkv_bias = model.qk_norm = true;
  EXPECT_THAT([&] { hf_config(model, 8); },
              ThrowsMessage<InvalidArgument>(HasSubstr("nearest: --format armillary")));
  model.name = "gpt";
  EXPECT_THAT([&] { hf_config(model, 8); },
              ThrowsMessage<InvalidArgument>(HasSubstr("export: model.name gpt in format hf")));
  // Llama itself wants heads that divide hidden_size.
  model = read_small("llama");
  model.n_heads = 6;
  model.head_dim = 16;
  EXPECT_EQ(hf_config(model, 8)["model_type"], "mistral");
  EXPECT_TRUE(hf_config(model, 8)["sliding_window"].is_null());
}

}  // namespace
}  // namespace armillary::train
