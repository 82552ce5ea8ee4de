// hf_config.cpp: the two directions. The reader marks each key that it looks at, so what is left at
// the end was not obeyed.
#include "armillary/train/checkpoint/hf_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/json_text.h"
#include "armillary/core/names.h"
#include "armillary/core/section.h"
#include "armillary/core/user_text.h"
#include "armillary/model/registry.h"
#include "armillary/model/rope_scaling.h"
#include "armillary/train/checkpoint/expert_folder.h"
#include "armillary/train/checkpoint/hf_rope.h"
#include "armillary/train/checkpoint/model_config.h"
#include "armillary/train/packed_text.h"

namespace armillary::train {
namespace {

using Config = nlohmann::json;

/// A model of transformers whose layers are those of a llama or a moe here.
struct HfFamily {
  std::string_view model_type;
  std::string_view architecture;
};
constexpr std::array kHfFamilies{
    HfFamily{"llama", "LlamaForCausalLM"},     HfFamily{"mistral", "MistralForCausalLM"},
    HfFamily{"qwen2", "Qwen2ForCausalLM"},     HfFamily{"qwen3", "Qwen3ForCausalLM"},
    HfFamily{"mixtral", "MixtralForCausalLM"}, HfFamily{"qwen3_moe", "Qwen3MoeForCausalLM"}};

/// Keys that change no logits of a whole sequence.
constexpr auto kWithoutEffect = std::to_array<std::string_view>({"_attn_implementation",
                                                                 "_attn_implementation_autoset",
                                                                 "_name_or_path",
                                                                 "attn_implementation",
                                                                 "bos_token_id",
                                                                 "cls_token_id",
                                                                 "do_sample",
                                                                 "dtype",
                                                                 "eos_token_id",
                                                                 "id2label",
                                                                 "initializer_range",
                                                                 "is_llama_config",
                                                                 "label2id",
                                                                 "max_length",
                                                                 "max_sequence_length",
                                                                 "min_length",
                                                                 "output_attentions",
                                                                 "output_hidden_states",
                                                                 "output_router_logits",
                                                                 "pad_token_id",
                                                                 "pretraining_tp",
                                                                 "problem_type",
                                                                 "repetition_penalty",
                                                                 "return_dict",
                                                                 "sep_token_id",
                                                                 "task_specific_params",
                                                                 "temperature",
                                                                 "tokenizer_class",
                                                                 "top_k",
                                                                 "top_p",
                                                                 "torch_dtype",
                                                                 "transformers.js_config",
                                                                 "transformers_version",
                                                                 "unk_token_id",
                                                                 "unsloth_fixed",
                                                                 "unsloth_version",
                                                                 "use_cache"});

/// A config on its way to options.
class HfConfigReader {
 public:
  HfConfigReader(const std::string& path, const Config& config) : path_(path), config_(config) {}

  model::ModelOptions read() {
    const std::string family = read_family();
    const bool has_experts = family == "mixtral" || family == "qwen3_moe";
    model::ModelOptions model = model::default_options(has_experts ? "moe" : "llama");
    model.vocab_size = size("vocab_size");
    model.dim = size("hidden_size");
    model.hidden_dim = size("intermediate_size");
    model.n_layers = size("num_hidden_layers");
    model.n_heads = size("num_attention_heads");
    read_heads(family, model);
    model.norm_eps = number("rms_norm_eps", 1e-6);
    model.enable_weight_tying = flag("tie_word_embeddings");
    model.qkv_bias = family == "qwen2";
    model.qk_norm = family == "qwen3" || family == "qwen3_moe";
    if (has_experts) read_experts(family, model);
    model.sliding_window = read_window(family, model.n_layers);
    read_rope(family, model);
    // Features that are not built, unless their values leave them out.
    require("hidden_act", "silu");
    for (const char* key :
         {"attention_bias", "mlp_bias", "rope_interleaved", "is_encoder_decoder"}) {
      require(key, false);
    }
    require("attention_dropout", 0);
    require("partial_rotary_factor", 1);
    refuse_others();
    return model;
  }

 private:
  /// The value of a key; null if it is not there.
  const Config& value(const std::string& key) {
    static const Config null;
    seen_.insert(key);
    const auto entry = config_.find(key);
    return entry == config_.end() ? null : *entry;
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& required) {
    const auto entry = config_.find(key);
    if (entry == config_.end()) {
      fail<InvalidArgument>("model: {} has no {}; {} is required", excerpt(path_), key, required);
    }
    fail<InvalidArgument>("model: {} has {} = {}; {} is required", excerpt(path_), key,
                          excerpt(json_text(*entry)), required);
  }

  /// A whole number from 1 on; without `otherwise` it must be there.
  std::int64_t size(const std::string& key, std::optional<std::int64_t> otherwise = {}) {
    const Config& number = value(key);
    if (number.is_null() && otherwise) return *otherwise;
    if (!number.is_number_integer() || number < 1 || number > kMaxSize) {
      refuse(key, fmt::format("a whole number from 1 to {}", kMaxSize));
    }
    return number.get<std::int64_t>();
  }

  double number(const std::string& key, double otherwise, bool may_be_0 = false) {
    const Config& number = value(key);
    if (number.is_null()) return otherwise;
    const double entry = number.is_number() ? number.get<double>() : -1;
    if (entry > 0 || (may_be_0 && entry == 0)) return entry;
    refuse(key, may_be_0 ? "a number from 0 on" : "a number above 0");
  }

  bool flag(const std::string& key) {
    const Config& flag = value(key);
    if (flag.is_null()) return false;
    if (!flag.is_boolean()) refuse(key, "true or false");
    return flag.get<bool>();
  }

  /// The key has this value, or none.
  void require(const std::string& key, const Config& required) {
    const Config& entry = value(key);
    if (!entry.is_null() && entry != required) refuse(key, json_text(required));
  }

  std::string read_family() {
    std::vector<std::string> names;
    names.reserve(std::size(kHfFamilies));
    for (const HfFamily& family : kHfFamilies) names.emplace_back(family.model_type);
    const Config& type = value("model_type");
    const auto* const family =
        type.is_string()
            ? std::ranges::find(kHfFamilies, type.get<std::string>(), &HfFamily::model_type)
            : kHfFamilies.end();
    if (family == kHfFamilies.end()) refuse("model_type", list_names(names));
    // A classifier of the family has other outputs.
    const Config required = Config::array({std::string(family->architecture)});
    require("architectures", required);
    return std::string(family->model_type);
  }

  /// KV heads and the size of a head.
  void read_heads(const std::string& family, model::ModelOptions& model) {
    const bool has_default = family == "llama" || config_.contains("num_key_value_heads");
    model.n_kv_heads =
        has_default ? size("num_key_value_heads", model.n_heads) : size("num_key_value_heads");
    const bool is_whole = model.dim % model.n_heads == 0;
    // 128 in Qwen3, but not in its mixtures, whatever the other sizes.
    std::optional<std::int64_t> otherwise;
    if (is_whole) otherwise = model.dim / model.n_heads;
    if (family == "qwen3" && !config_.contains("head_dim")) otherwise = 128;
    const std::int64_t head_dim = size("head_dim", otherwise);
    if (!is_whole || head_dim != model.dim / model.n_heads) model.head_dim = head_dim;
  }

  /// Experts and their router, with the defaults of transformers.
  void read_experts(const std::string& family, model::ModelOptions& model) {
    const bool is_qwen = family == "qwen3_moe";
    // Version 5 writes the name of Mixtral for both.
    const bool has_own_name = is_qwen && config_.contains("num_experts");
    model.num_experts = size(has_own_name ? "num_experts" : "num_local_experts", is_qwen ? 128 : 8);
    if (has_own_name) require("num_local_experts", model.num_experts);
    model.top_k = size("num_experts_per_tok", is_qwen ? 8 : 2);
    model.router_aux_loss_coef = number("router_aux_loss_coef", 0.001, /*may_be_0=*/true);
    if (is_qwen) {
      model.hidden_dim = size("moe_intermediate_size", 768);
      model.route_norm = flag("norm_topk_prob");
      // Experts in every layer.
      require("decoder_sparse_step", 1);
      require("mlp_only_layers", Config::array());
    } else {
      require("router_jitter_noise", 0);
    }
    model.moe_inter_dim = model.hidden_dim;
  }

  /// Tokens of the window of every layer; 0: none.
  std::int64_t read_window(const std::string& family, std::int64_t n_layers) {
    constexpr std::int64_t kDefault = 4096;
    if (family == "llama") return 0;
    if (family == "mistral") {
      const bool is_left_out = !config_.contains("sliding_window");
      return is_left_out || !value("sliding_window").is_null() ? size("sliding_window", kDefault)
                                                               : 0;
    }
    if (family == "mixtral") {
      return value("sliding_window").is_null() ? 0 : size("sliding_window");
    }
    // Qwen: without the flag the other keys change nothing.
    const bool uses = flag("use_sliding_window");
    std::int64_t window = 0;
    std::int64_t full_layers = n_layers;  // the first ones, which have no window
    if (uses) {
      window = size("sliding_window", kDefault);
      // Versions of Qwen3-MoE differ in what they make of others.
      if (family == "qwen3_moe") require("max_window_layers", 0);
      const Config& full = value("max_window_layers");
      if (!full.is_null() && (!full.is_number_integer() || full < 0)) {
        refuse("max_window_layers", "a whole number from 0 on");
      }
      const std::int64_t otherwise = family == "qwen3_moe" ? 0 : 28;
      full_layers = full.is_null() ? otherwise : full.get<std::int64_t>();
    } else {
      value("sliding_window");
      value("max_window_layers");
    }
    if (!value("layer_types").is_null()) {
      full_layers = count_of_full_layers(n_layers);
      if (!uses && full_layers < n_layers)
        refuse("use_sliding_window", "true, as layer_types say,");
    }
    if (full_layers >= n_layers) return 0;
    if (full_layers == 0) return window;
    refuse(config_.contains("layer_types") ? "layer_types" : "max_window_layers",
           "one kind of attention in all layers");
  }

  std::int64_t count_of_full_layers(std::int64_t n_layers) {
    const Config& types = value("layer_types");
    const bool is_list = types.is_array() && static_cast<std::int64_t>(types.size()) == n_layers &&
                         std::ranges::all_of(types, [](const Config& type) {
                           return type == "full_attention" || type == "sliding_attention";
                         });
    if (!is_list) refuse("layer_types", "full_attention or sliding_attention for each layer");
    return std::ranges::count(types, Config("full_attention"));
  }

  void read_rope(const std::string& family, model::ModelOptions& model) {
    // The defaults of transformers.
    const bool is_mistral = family == "mistral" || family == "mixtral";
    const std::int64_t otherwise = family == "llama" ? 2048 : is_mistral ? 131072 : 32768;
    const std::int64_t positions = size("max_position_embeddings", otherwise);
    // 10000 or 1000000, as the version is.
    const bool has_theta = !value("rope_theta").is_null() || !value("rope_parameters").is_null();
    if (family == "mixtral" && !has_theta) refuse("rope_theta", "a number above 0");
    const HfRope rope = read_hf_rope(path_, {.scaling = value("rope_scaling"),
                                             .parameters = value("rope_parameters"),
                                             .theta = value("rope_theta"),
                                             .original = value("original_max_position_embeddings"),
                                             .positions = positions});
    model.rope_theta = rope.theta;
    model.rope_scaling = model::to_string(rope.scaling);
  }

  void refuse_others() {
    for (const auto& [key, entry] : config_.items()) {
      if (entry.is_null() || seen_.contains(key)) continue;
      if (std::ranges::find(kWithoutEffect, key) != kWithoutEffect.end()) continue;
      fail<InvalidArgument>(
          "model: {} has {} = {}, which is not obeyed here; a config without it is required",
          excerpt(path_), excerpt(key), excerpt(json_text(entry)));
    }
  }

  const std::string& path_;
  const Config& config_;
  std::set<std::string> seen_;
};

/// The family that computes what the model does.
const HfFamily& family_of(const model::ModelOptions& model) {
  if (model.name == "moe") {
    check_hf_experts(model);
    return kHfFamilies[model.qk_norm ? 5 : 4];
  }
  if (model.name != "llama") {
    fail<InvalidArgument>(
        "export: model.name {} in format hf; llama or moe, which transformers has too, is "
        "required; nearest: --format armillary",
        model.name);
  }
  if (model.qkv_bias && model.qk_norm) {
    fail<InvalidArgument>(
        "export: model.qkv_bias and model.qk_norm in format hf; one of them, as in Qwen2 or Qwen3, "
        "is required; nearest: --format armillary");
  }
  if (model.qkv_bias) return kHfFamilies[2];
  if (model.qk_norm) return kHfFamilies[3];
  // Mistral is Llama, but for a window, and it allows heads that do not divide hidden_size.
  return kHfFamilies[model.sliding_window > 0 || model.dim % model.n_heads != 0 ? 1 : 0];
}

/// Adds the keys by which a family says its window.
void add_window(Config& config, const model::ModelOptions& model) {
  const bool has = model.sliding_window > 0;
  const Config window = has ? Config(model.sliding_window) : Config();
  const bool is_mistral = config["model_type"] == "mistral" || config["model_type"] == "mixtral";
  if (is_mistral) config["sliding_window"] = window;
  if (!model.qkv_bias && !model.qk_norm) return;
  config["use_sliding_window"] = has;
  config["sliding_window"] = window;
  if (model.name == "moe") return;  // one window for all layers
  config["max_window_layers"] = has ? 0 : model.n_layers;
  config["layer_types"] = std::vector<std::string>(static_cast<std::size_t>(model.n_layers),
                                                   has ? "sliding_attention" : "full_attention");
}

/// Adds the keys of experts and their router.
void add_experts(Config& config, const model::ModelOptions& model) {
  if (model.name != "moe") return;
  const model::MoeOptions moe = model::decoder_options(model).moe();
  config["intermediate_size"] = moe.moe_inter_dim;
  config["num_experts_per_tok"] = moe.top_k;
  config["num_local_experts"] = moe.num_experts;
  config["router_aux_loss_coef"] = moe.router_aux_loss_coef;
  config["output_router_logits"] = false;
  if (config["model_type"] == "mixtral") return;
  config["num_experts"] = moe.num_experts;
  config["moe_intermediate_size"] = moe.moe_inter_dim;
  config["norm_topk_prob"] = moe.route_norm;
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = Config::array();
}

}  // namespace

model::ModelOptions read_hf_config(const std::string& path, const Config& config) {
  return checked_model(path, HfConfigReader(path, config).read());
}

std::string hf_size_key(std::string_view key, const Config& config) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kKeys{
      {{"dim", "hidden_size"},
       {"hidden_dim", "intermediate_size"},
       {"n_heads", "num_attention_heads"},
       {"n_kv_heads", "num_key_value_heads"}}};
  const auto* const row =
      std::ranges::find(kKeys, key, [](const auto& pair) { return pair.first; });
  if (row != kKeys.end()) return std::string(row->second);
  if (key == "num_experts" && !config.contains("num_experts")) return "num_local_experts";
  if (key != "moe_inter_dim") return std::string(key);
  const bool is_mixtral = config.value("model_type", Config()) == "mixtral";
  return is_mixtral ? "intermediate_size" : "moe_intermediate_size";
}

Config hf_config(const model::ModelOptions& model, std::int64_t seq_len, const std::string& dtype) {
  const HfFamily& family = family_of(model);
  const model::DecoderOptions options = model::decoder_options(model);
  Config config{{"model_type", family.model_type},
                {"architectures", Config::array({std::string(family.architecture)})},
                {"vocab_size", options.vocab_size()},
                {"hidden_size", options.dim()},
                {"intermediate_size", options.hidden_dim()},
                {"num_hidden_layers", options.n_layers()},
                {"num_attention_heads", options.n_heads()},
                {"num_key_value_heads", options.n_kv_heads()},
                {"head_dim", model::head_dim_of(options)},
                {"rms_norm_eps", options.norm_eps()},
                {"tie_word_embeddings", options.tied()},
                {"hidden_act", "silu"},
                {"attention_bias", false},
                {"mlp_bias", false},
                {"bos_token_id", nullptr},
                {"eos_token_id", options.vocab_size() > kSeparator ? Config(kSeparator) : Config()},
                {"pad_token_id", nullptr},
                {"dtype", dtype},
                {"torch_dtype", dtype}};
  add_experts(config, model);
  add_window(config, model);
  add_hf_rope(config, {.theta = options.rope_theta(), .scaling = options.rope_scaling()}, seq_len);
  return config;
}

}  // namespace armillary::train
