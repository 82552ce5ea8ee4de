// config.json in both formats. Reading is comparing: a config must have what writing would give it
// for the recipe, key by key. Configs of transformers are first brought into one form, since its
// versions differ in keys and leave out defaults.
#include "armillary/train/checkpoint/model_config.h"

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/json_text.h"
#include "armillary/core/names.h"
#include "armillary/core/section.h"
#include "armillary/core/user_text.h"
#include "armillary/model/registry.h"
#include "armillary/train/packed_text.h"

namespace armillary::train {
namespace {

using Config = nlohmann::json;

/// Part of our name, and the same part as transformers has it.
constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kHfNames{{
    {"tok_embeddings", "model.embed_tokens"},
    {"output", "lm_head"},
    {"attention.wq", "self_attn.q_proj"},
    {"attention.wk", "self_attn.k_proj"},
    {"attention.wv", "self_attn.v_proj"},
    {"attention.wo", "self_attn.o_proj"},
    {"feed_forward.w1", "mlp.gate_proj"},
    {"feed_forward.w3", "mlp.up_proj"},
    {"feed_forward.w2", "mlp.down_proj"},
    {"attention_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
}};

/// Keys that decide what transformers computes for a Llama with these sizes.
Config hf_computed(const model::ModelOptions& model) {
  const model::DecoderOptions options = model::decoder_options(model);
  return {{"model_type", "llama"},
          {"vocab_size", options.vocab_size()},
          {"hidden_size", options.dim()},
          {"intermediate_size", options.hidden_dim()},
          {"num_hidden_layers", options.n_layers()},
          {"num_attention_heads", options.n_heads()},
          {"num_key_value_heads", options.n_kv_heads()},
          {"head_dim", options.dim() / options.n_heads()},
          {"rms_norm_eps", options.norm_eps()},
          {"tie_word_embeddings", options.tied()},
          {"rope_theta", options.rope_theta()},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"rope_scaling", nullptr}};
}

/// Values that transformers takes for keys that a config leaves out.
Config hf_defaults(const Config& config) {
  return {{"num_key_value_heads", config.value("num_attention_heads", Config())},
          {"tie_word_embeddings", false},
          {"rope_theta", 10000.0},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"rope_scaling", nullptr}};
}

/// A config of transformers with every key that hf_computed() has, as older versions write them:
/// newer ones have an object rope_parameters.
Config hf_normalized(Config config) {
  if (config.contains("rope_parameters") && config["rope_parameters"].is_object()) {
    Config rope = config["rope_parameters"];
    if (rope.contains("rope_theta")) config["rope_theta"] = rope["rope_theta"];
    rope.erase("rope_theta");
    if (rope.value("rope_type", Config("default")) == "default") rope.erase("rope_type");
    if (!rope.empty()) config["rope_scaling"] = rope;
  }
  // Older configs have no head_dim: it is the quotient.
  const Config heads = config.value("num_attention_heads", Config());
  const Config hidden = config.value("hidden_size", Config());
  if (!config.contains("head_dim") && heads.is_number_integer() && hidden.is_number_integer() &&
      heads != 0) {
    config["head_dim"] = hidden.get<std::int64_t>() / heads.get<std::int64_t>();
  }
  // Last the defaults, some of which depend on keys above.
  const Config defaults = hf_defaults(config);
  for (const auto& [key, value] : defaults.items()) {
    if (!config.contains(key)) config[key] = value;
  }
  return config;
}

/// The keys of [model] with their values: all of them, so that a new one is compared without a
/// change here. The vocabulary stands beside them.
Config own_computed(model::ModelOptions model) {
  Config keys = Config::object();
  for (const Key& key : section_of(model).keys) {
    if (key.name == "vocab_size") continue;
    std::visit([&](const auto* value) { keys[key.name] = *value; }, key.value);
  }
  return {{"model_type", "armillary"}, {"vocab_size", model.vocab_size}, {"model", keys}};
}

/// A value of a config in an error.
std::string shown(const Config& value) {
  return excerpt(json_text(value));
}

/// Refuses the first key whose value is not the one wanted.
void require_equal(const std::string& path, const std::string& inside, const Config& config,
                   const Config& required) {
  for (const auto& [key, value] : required.items()) {
    const Config entry = config.is_object() ? config.value(key, Config()) : Config();
    if (value.is_object()) {
      require_equal(path, inside + key + ".", entry, value);
    } else if (entry != value) {
      fail<InvalidArgument>("model: {} has {}{} = {}; {}, that of the recipe, is required",
                            excerpt(path), inside, key, shown(entry), shown(value));
    }
  }
}

}  // namespace

FolderFormat parse_folder_format(const std::string& name) {
  const std::vector<std::string> names{"hf", "armillary"};
  if (name == names[0]) return FolderFormat::Hf;
  if (name == names[1]) return FolderFormat::Armillary;
  const std::string nearest = nearest_name(name, names);
  fail<InvalidArgument>("export: format {} is not known; {} is required{}", quote(name),
                        list_names(names), nearest.empty() ? "" : "; nearest: " + nearest);
}

Config model_config(const model::ModelOptions& model, std::int64_t seq_len, FolderFormat format,
                    const std::string& dtype) {
  if (format == FolderFormat::Armillary) {
    Config config = own_computed(model);
    config["dtype"] = dtype;
    return config;
  }
  if (model.name != "llama") {
    fail<InvalidArgument>(
        "export: model.name {} in format hf; llama, which transformers has too, is required; "
        "nearest: --format armillary",
        model.name);
  }
  Config config = hf_computed(model);
  config["architectures"] = {"LlamaForCausalLM"};
  config["max_position_embeddings"] = seq_len;
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", model.rope_theta}};
  config["bos_token_id"] = nullptr;
  config["eos_token_id"] = kSeparator;
  config["pad_token_id"] = nullptr;
  config["dtype"] = dtype;
  config["torch_dtype"] = dtype;
  return config;
}

FolderFormat format_of(const Config& config) {
  const bool is_ours = config.is_object() && config.value("model_type", Config()) == "armillary";
  return is_ours ? FolderFormat::Armillary : FolderFormat::Hf;
}

void check_config(const std::string& path, const Config& config, const model::ModelOptions& model) {
  if (format_of(config) == FolderFormat::Armillary) {
    require_equal(path, "", config, own_computed(model));
    return;
  }
  if (model.name != "llama") {
    fail<InvalidArgument>("model: {} has model_type {}; armillary, for model.name {}, is required",
                          excerpt(path), shown(config.value("model_type", Config())), model.name);
  }
  require_equal(path, "", hf_normalized(config), hf_computed(model));
}

std::string folder_name(const std::string& parameter, FolderFormat format) {
  if (format == FolderFormat::Armillary) return parameter;
  for (const auto& [ours, theirs] : kHfNames) {
    const std::size_t at = parameter.find(ours);
    const bool whole = at != std::string::npos && (at == 0 || parameter[at - 1] == '.') &&
                       parameter[at + ours.size()] == '.';
    if (!whole) continue;
    const std::string name =
        parameter.substr(0, at) + std::string(theirs) + parameter.substr(at + ours.size());
    return at == 0 ? name : "model." + name;
  }
  return "model." + parameter;  // the last norm
}

}  // namespace armillary::train
