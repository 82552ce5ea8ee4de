// hf_rope.cpp: defaults of transformers are resolved here (modeling_rope_utils.py), so a
// RopeScaling depends on no other key of a config.
#include "armillary/train/checkpoint/hf_rope.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/json_text.h"
#include "armillary/core/names.h"
#include "armillary/core/user_text.h"

namespace armillary::train {
namespace {

using Config = nlohmann::json;
using model::RopeKind;
using model::RopeScaling;

/// One object, rope_scaling or rope_parameters.
class HfRopeReader {
 public:
  HfRopeReader(const std::string& path, const char* name, const Config& object,
               const HfRopeKeys& keys)
      : path_(path), name_(name), object_(object), keys_(keys) {}

  HfRope read() {
    if (!object_.is_object()) {
      fail<InvalidArgument>("model: {} has {} = {}; an object is required", excerpt(path_), name_,
                            excerpt(json_text(object_)));
    }
    HfRope rope{.theta = number("rope_theta").value_or(10000)};
    if (number("partial_rotary_factor").value_or(1) != 1) refuse("partial_rotary_factor", "1");
    seen_.insert("finetuned");  // says how a model was made
    rope.scaling.kind = read_kind();
    read_scaling(rope.scaling);
    for (const auto& [key, entry] : object_.items()) {
      if (entry.is_null() || seen_.contains(key)) continue;
      fail<InvalidArgument>(
          "model: {} has {}.{} = {}, which {} does not obey; a config without it is required",
          excerpt(path_), name_, excerpt(key), excerpt(json_text(entry)),
          model::rope_kinds()[static_cast<std::size_t>(rope.scaling.kind)]);
    }
    return rope;
  }

  bool has_theta() { return number("rope_theta").has_value(); }

 private:
  const Config& value(const std::string& key) {
    static const Config null;
    seen_.insert(key);
    const auto entry = object_.find(key);
    return entry == object_.end() ? null : *entry;
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& required) {
    fail<InvalidArgument>("model: {} has {}.{} = {}; {} is required", excerpt(path_), name_, key,
                          excerpt(json_text(value(key))), required);
  }

  std::optional<double> number(const std::string& key) {
    const Config& number = value(key);
    if (number.is_null()) return std::nullopt;
    if (!number.is_number()) refuse(key, "a number");
    return number.get<double>();
  }
  double required_number(const std::string& key) {
    const auto entry = number(key);
    if (!entry) refuse(key, "a number");
    return *entry;
  }

  std::vector<double> numbers(const std::string& key) {
    const Config& list = value(key);
    const bool is_list = list.is_array() && std::ranges::all_of(list, [](const Config& number) {
                           return number.is_number();
                         });
    if (!is_list) refuse(key, "a list of numbers");
    return list.get<std::vector<double>>();
  }

  RopeKind read_kind() {
    const Config& old = value("type");
    const Config& entry = value("rope_type").is_null() ? old : value("rope_type");
    if (entry.is_null() || entry == "default") return RopeKind::None;
    if (entry == "su") return RopeKind::LongRope;  // its first name
    const std::vector<std::string>& kinds = model::rope_kinds();
    const auto kind =
        entry.is_string() ? std::ranges::find(kinds, entry.get<std::string>()) : kinds.end();
    if (kind == kinds.end() || kind == kinds.begin()) {
      refuse(value("rope_type").is_null() ? "type" : "rope_type",
             "default, " + list_names(std::span(kinds).subspan(1)));
    }
    return static_cast<RopeKind>(kind - kinds.begin());
  }

  /// Tokens of the first training: outside the object, in it, or as many as there are positions.
  std::int64_t original() {
    const char* const key = "original_max_position_embeddings";
    const Config& inner = value(key);
    const Config& entry = keys_.original.is_null() ? inner : keys_.original;
    if (entry.is_null()) return keys_.positions;
    if (!entry.is_number_integer() || entry < 2) refuse(key, "a whole number from 2 on");
    return entry.get<std::int64_t>();
  }

  double ratio(std::int64_t original) const {
    return static_cast<double>(keys_.positions) / static_cast<double>(original);
  }

  void read_scaling(RopeScaling& scaling) {
    switch (scaling.kind) {
      case RopeKind::None:
        return;
      case RopeKind::Linear:
        scaling.factor = required_number("factor");
        return;
      case RopeKind::Dynamic:
        scaling.factor = required_number("factor");
        scaling.original = keys_.positions;
        return;
      case RopeKind::Llama3:
        scaling.factor = required_number("factor");
        scaling.low = required_number("low_freq_factor");
        scaling.high = required_number("high_freq_factor");
        scaling.original = original();
        return;
      case RopeKind::Yarn:
        return read_yarn(scaling);
      case RopeKind::LongRope:
        scaling.original = original();
        scaling.factor = std::max(1.0, number("factor").value_or(ratio(scaling.original)));
        scaling.attention = number("attention_factor");
        scaling.short_factors = numbers("short_factor");
        scaling.long_factors = numbers("long_factor");
        return;
    }
  }

  void read_yarn(RopeScaling& scaling) {
    scaling.original = original();
    scaling.factor = number("factor").value_or(ratio(scaling.original));
    // 0 stands for the default.
    const auto beta = [&](const char* key, double otherwise) {
      const double entry = number(key).value_or(0);
      return entry == 0 ? otherwise : entry;
    };
    scaling.beta_fast = beta("beta_fast", scaling.beta_fast);
    scaling.beta_slow = beta("beta_slow", scaling.beta_slow);
    const Config& truncate = value("truncate");
    if (!truncate.is_null() && !truncate.is_boolean()) refuse("truncate", "true or false");
    if (truncate.is_boolean()) scaling.truncate = truncate.get<bool>();
    // The two scales count only together.
    const double scale = number("mscale").value_or(0);
    const double scale_all = number("mscale_all_dim").value_or(0);
    scaling.attention = number("attention_factor");
    if (!scaling.attention && scale != 0 && scale_all != 0) {
      const auto magnitude = [&](double of) {
        return scaling.factor <= 1 ? 1.0 : 0.1 * of * std::log(scaling.factor) + 1;
      };
      scaling.attention = magnitude(scale) / magnitude(scale_all);
    }
  }

  const std::string& path_;
  const char* name_;
  const Config& object_;
  const HfRopeKeys& keys_;
  std::set<std::string> seen_;
};

/// The object of version 5, without the base.
Config rope_object(const RopeScaling& scaling) {
  Config object = Config::object();
  object["rope_type"] = "default";
  if (scaling.kind == RopeKind::None) return object;
  object["rope_type"] = model::rope_kinds()[static_cast<std::size_t>(scaling.kind)];
  object["factor"] = scaling.factor;
  if (scaling.kind == RopeKind::Linear || scaling.kind == RopeKind::Dynamic) return object;
  object["original_max_position_embeddings"] = scaling.original;
  if (scaling.attention) object["attention_factor"] = *scaling.attention;
  if (scaling.kind == RopeKind::Llama3) {
    object["low_freq_factor"] = scaling.low;
    object["high_freq_factor"] = scaling.high;
  }
  if (scaling.kind == RopeKind::Yarn) {
    object["beta_fast"] = scaling.beta_fast;
    object["beta_slow"] = scaling.beta_slow;
    object["truncate"] = scaling.truncate;
  }
  if (scaling.kind == RopeKind::LongRope) {
    object["short_factor"] = scaling.short_factors;
    object["long_factor"] = scaling.long_factors;
  }
  return object;
}

}  // namespace

HfRope read_hf_rope(const std::string& path, const HfRopeKeys& keys) {
  HfRope rope;
  const auto is_there = [](const Config& object) { return !object.is_null() && !object.empty(); };
  bool has_theta = false;
  if (is_there(keys.parameters)) {
    HfRopeReader reader(path, "rope_parameters", keys.parameters, keys);
    rope = reader.read();
    has_theta = reader.has_theta();
  }
  if (is_there(keys.scaling)) {
    HfRopeReader reader(path, "rope_scaling", keys.scaling, keys);
    const HfRope older = reader.read();
    if (is_there(keys.parameters) && older.scaling != rope.scaling) {
      fail<InvalidArgument>(
          "model: {} has rope_scaling = {}, rope_parameters say {}; the same is "
          "required",
          excerpt(path), excerpt(model::to_string(older.scaling)),
          excerpt(model::to_string(rope.scaling)));
    }
    rope.scaling = older.scaling;
    if (reader.has_theta() && !has_theta) {
      rope.theta = older.theta;
      has_theta = true;
    }
  }
  if (keys.theta.is_null()) return rope;
  if (!keys.theta.is_number() || (has_theta && keys.theta.get<double>() != rope.theta)) {
    fail<InvalidArgument>(
        "model: {} has rope_theta = {}; {} is required", excerpt(path),
        excerpt(json_text(keys.theta)),
        has_theta ? fmt::format("{}, that of rope_parameters,", rope.theta) : "a number");
  }
  rope.theta = keys.theta.get<double>();
  return rope;
}

void add_hf_rope(Config& config, const HfRope& rope, std::int64_t seq_len) {
  const RopeScaling& scaling = rope.scaling;
  const Config object = rope_object(scaling);
  config["rope_theta"] = rope.theta;
  config["rope_scaling"] = scaling.kind == RopeKind::None ? Config() : object;
  config["rope_parameters"] = object;
  config["rope_parameters"]["rope_theta"] = rope.theta;
  // The first length where it counts, else the longest sequences.
  const double stretched = static_cast<double>(scaling.original) * scaling.factor;
  config["max_position_embeddings"] =
      scaling.kind == RopeKind::Dynamic
          ? scaling.original
          : std::max(seq_len, static_cast<std::int64_t>(std::min(stretched, 1e15)));
}

}  // namespace armillary::train
