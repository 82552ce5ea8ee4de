// model_config.cpp: both formats. A config becomes a [model] section, and two of them are compared
// key by key, with every size given, so that a new key is compared without a change here.
#include "armillary/train/checkpoint/model_config.h"

#include <algorithm>
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
#include "armillary/model/rope_scaling.h"
#include "armillary/train/checkpoint/expert_folder.h"
#include "armillary/train/checkpoint/hf_config.h"

namespace armillary::train {
namespace {

using Config = nlohmann::json;

constexpr const char* kOwnType = "armillary";

/// Part of our name, and the same part as transformers has it.
constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kHfNames{{
    {"tok_embeddings", "model.embed_tokens"},
    {"output", "lm_head"},
    {"attention.wq", "self_attn.q_proj"},
    {"attention.wk", "self_attn.k_proj"},
    {"attention.wv", "self_attn.v_proj"},
    {"attention.wo", "self_attn.o_proj"},
    {"attention.q_norm", "self_attn.q_norm"},
    {"attention.k_norm", "self_attn.k_norm"},
    {"feed_forward.w1", "mlp.gate_proj"},
    {"feed_forward.w3", "mlp.up_proj"},
    {"feed_forward.w2", "mlp.down_proj"},
    {"attention_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
}};

/// The value of a key as JSON.
Config value_of(const Key& key) {
  return std::visit([](const auto* value) { return Config(*value); }, key.value);
}

/// The keys of [model] with their values. The vocabulary stands beside them.
Config own_computed(model::ModelOptions model) {
  Config keys = Config::object();
  for (const Key& key : section_of(model).keys) {
    if (key.name == "vocab_size") continue;
    keys[key.name] = value_of(key);
  }
  return {{"model_type", kOwnType}, {"vocab_size", model.vocab_size}, {"model", keys}};
}

/// The same model with every size given, and without the rule for the width of the MLP.
model::ModelOptions with_sizes(model::ModelOptions model) {
  const model::ModelOptions defaults;
  model.hidden_dim = model::hidden_dim_of(model);
  model.n_kv_heads = model.kv_heads();
  model.multiple_of = defaults.multiple_of;
  model.ffn_dim_multiplier = defaults.ffn_dim_multiplier;
  if (model.name == "moe") {
    model.hidden_dim = model.moe_inter_dim = model::decoder_options(model).moe().moe_inter_dim;
    // These change gradients alone.
    model.router_aux_loss_coef = defaults.router_aux_loss_coef;
    model.balance_over = defaults.balance_over;
  }
  if (model.name != "llama" && model.name != "moe") return model;
  model.head_dim = model.head_width();
  model.rope_scaling = model::to_string(model::parse_rope_scaling(model.rope_scaling));
  return model;
}

/// Sets a key of [model] to a value of another config. @throws InvalidArgument for another type.
void assign_config(const std::string& path, const Key& key, const Config& value) {
  const auto refuse = [&](const char* required) {
    fail<InvalidArgument>("model: {} has model.{} = {}; {} is required", excerpt(path), key.name,
                          excerpt(json_text(value)), required);
  };
  if (auto* const* flag = std::get_if<bool*>(&key.value)) {
    if (!value.is_boolean()) refuse("true or false");
    **flag = value.get<bool>();
  } else if (auto* const* size = std::get_if<std::int64_t*>(&key.value)) {
    if (!value.is_number_integer()) refuse("a whole number");
    **size = value.get<std::int64_t>();
  } else if (auto* const* number = std::get_if<double*>(&key.value)) {
    if (!value.is_number()) refuse("a number");
    **number = value.get<double>();
  } else if (auto* const* text = std::get_if<std::string*>(&key.value)) {
    if (!value.is_string()) refuse("a text");
    **text = value.get<std::string>();
  }
}

/// The model of a folder of the format armillary. Keys that an older version did not write have
/// their defaults.
model::ModelOptions read_own(const std::string& path, const Config& config) {
  const Config keys = config.value("model", Config());
  const Config name = keys.is_object() ? keys.value("name", Config()) : Config();
  const std::vector<std::string>& names = model::model_names();
  if (!name.is_string() || std::ranges::find(names, name.get<std::string>()) == names.end()) {
    fail<InvalidArgument>("model: {} has model.name = {}; {} is required", excerpt(path),
                          excerpt(json_text(name)), list_names(names));
  }
  model::ModelOptions model = model::default_options(name.get<std::string>());
  const Section section = section_of(model);
  for (const auto& [key, value] : keys.items()) {
    if (key == "name") continue;
    const auto entry = std::ranges::find(section.keys, key, &Key::name);
    if (entry == section.keys.end()) {
      fail<InvalidArgument>(
          "model: {} has model.{}, which {} has not; none but its keys are "
          "required",
          excerpt(path), excerpt(key), model.name);
    }
    assign_config(path, *entry, value);
  }
  // The vocabulary stands outside.
  const auto words = std::ranges::find(section.keys, "vocab_size", &Key::name);
  assign_config(path, *words, config.value("vocab_size", Config()));
  for (const auto& [key, value] : config.items()) {
    if (key == "model_type" || key == "vocab_size" || key == "model" || key == "dtype") continue;
    fail<InvalidArgument>(
        "model: {} has {}, which is not obeyed here; a config without it is "
        "required",
        excerpt(path), excerpt(key));
  }
  return model;
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
  return hf_config(model, seq_len, dtype);
}

FolderFormat format_of(const Config& config) {
  const bool is_ours = config.is_object() && config.value("model_type", Config()) == kOwnType;
  return is_ours ? FolderFormat::Armillary : FolderFormat::Hf;
}

model::ModelOptions read_model_config(const std::string& path, const Config& config) {
  if (format_of(config) == FolderFormat::Hf) return read_hf_config(path, config);
  return checked_model(path, read_own(path, config));
}

model::ModelOptions checked_model(const std::string& path, model::ModelOptions model) {
  // Single keys, as a recipe has them; then several together.
  for (const Key& key : section_of(model).keys) {
    const auto* const names = std::get_if<Names>(&key.legal);
    if (names != nullptr) {
      const auto& text = *std::get<std::string*>(key.value);
      if (std::ranges::find(*names, text) != names->end()) continue;
      fail<InvalidArgument>("model: {} has model.{} = {}; {} is required", excerpt(path), key.name,
                            quote(text), list_names(*names));
    }
    const auto* const range = std::get_if<Range>(&key.legal);
    if (range == nullptr) continue;
    const auto number = value_of(key).get<double>();
    if (number >= range->min && number <= range->max) continue;
    fail<InvalidArgument>("model: {} has model.{} = {}; a value {} is required", excerpt(path),
                          key.name, number, range->text);
  }
  try {
    model::check_model(model);
  } catch (const InvalidArgument& error) {
    fail<InvalidArgument>("model: {}: {}", excerpt(path), error.what());
  }
  return model;
}

void check_same_model(const std::string& path, const model::ModelOptions& there,
                      const model::ModelOptions& recipe) {
  model::ModelOptions theirs = with_sizes(there);
  model::ModelOptions ours = with_sizes(recipe);
  // The step of a bias changes training alone, but 0 is no bias.
  if (theirs.load_balance_coeff > 0 && ours.load_balance_coeff > 0) {
    theirs.load_balance_coeff = ours.load_balance_coeff;
  }
  const Section their_section = section_of(theirs);
  const Section our_section = section_of(ours);
  // model.name is the first key, so the sections have the same keys behind it.
  for (std::size_t i = 0; i < our_section.keys.size(); ++i) {
    const std::string their_text = json_text(value_of(their_section.keys[i]));
    const std::string our_text = json_text(value_of(our_section.keys[i]));
    if (their_text == our_text) continue;
    fail<InvalidArgument>(
        "model: {} has model.{} = {}; {}, that of the recipe, is required; --set model.from takes "
        "what is there",
        excerpt(path), our_section.keys[i].name, excerpt(their_text), excerpt(our_text));
  }
}

std::string folder_name(const std::string& parameter, const std::string& model_type) {
  if (model_type == kOwnType) return parameter;
  if (std::string router = router_name(parameter, model_type); !router.empty()) return router;
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
