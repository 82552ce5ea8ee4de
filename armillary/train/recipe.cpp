// recipe.cpp: reads, changes, checks and prints recipes by the tables of its sections.
//
// Every text, from a file or a setting, goes the same way: find the section, find the key, `assign`
// the value with its type, check that it is legal. model.name goes first, because the keys of
// [model] depend on it. Errors name file, line and key, and the nearest legal name.
#include "armillary/train/recipe.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/input_file.h"
#include "armillary/core/names.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"
#include "armillary/model/registry.h"
#include "armillary/predict/sim/toml_table.h"
#include "armillary/train/model_from.h"
#include "armillary/train/scale.h"

namespace armillary::train {
namespace {

/// A key of a recipe, with its section.
struct RecipeEntry : Key {
  std::string section;

  /// Name in settings and errors: "training.steps".
  std::string path() const { return section + "." + name; }
};

/// All keys, by section, in the order in which they are printed. The keys of [model] depend on
/// model.name. Their values point into `r`.
std::vector<RecipeEntry> entries(Recipe& r) {
  std::vector<RecipeEntry> all;
  std::array sections{section_of(r.job),         section_of(r.model),
                      section_of(r.training),    section_of(r.activation_checkpoint),
                      section_of(r.optimizer),   section_of(r.lr_scheduler),
                      section_of(r.parallelism), section_of(r.checkpoint),
                      section_of(r.comm),        section_of(r.metrics)};
  for (Section& section : sections) {
    for (Key& key : section.keys) all.push_back({std::move(key), section.name});
  }
  return all;
}

/// The type that a key requires.
std::string type_name(const RecipeEntry& entry) {
  static constexpr const char* kNames[] = {"a boolean", "an integer", "a number", "a string"};
  return kNames[entry.value.index()];
}

/// The type of a value that was given.
std::string type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::boolean:
      return "a boolean";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a number with a fraction";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::table:
      return "a table";
    default:
      return "a date or time";
  }
}

/// The value as it stands in a recipe. JSON's literals are TOML's too, except infinity and NaN.
std::string toml_text(const RecipeEntry& entry) {
  const auto* number = std::get_if<double*>(&entry.value);
  if (number != nullptr && !std::isfinite(**number)) return fmt::format("{}", **number);
  return std::visit([](const auto* value) { return nlohmann::json(*value).dump(); }, entry.value);
}

/// `where` is the start of every message: "recipe: default.toml:12: ".
std::string where(const std::string& origin, const toml::source_region& source) {
  return fmt::format("recipe: {}:{}: ", excerpt(origin), source.begin.line);
}

/// Refuses a name with the legal ones and the nearest of them. `what` says what it names.
[[noreturn]] void refuse_name(const std::string& where, const std::string& what,
                              const std::string& value, const Names& legal) {
  const std::string nearest = nearest_name(value, legal);
  fail<InvalidArgument>("{}{} {} is not known; {} is required{}", where, what, quote(value),
                        list_names(legal), nearest.empty() ? "" : "; nearest: " + nearest);
}

/// The value of a entry that holds a number.
double number(const RecipeEntry& entry) {
  if (const auto* value = std::get_if<double*>(&entry.value)) return **value;
  return static_cast<double>(*std::get<std::int64_t*>(entry.value));
}

/// Checks the value of a entry against its legal values.
void check_legal(const std::string& where, const RecipeEntry& entry) {
  if (const auto* range = std::get_if<Range>(&entry.legal)) {
    // Negated, so that NaN is refused too.
    if (!(number(entry) >= range->min && number(entry) <= range->max)) {
      fail<InvalidArgument>("{}{} = {}; a value {} is required", where, entry.path(),
                            toml_text(entry), range->text);
    }
  } else if (const auto* names = std::get_if<Names>(&entry.legal)) {
    const std::string& value = *std::get<std::string*>(entry.value);
    if (std::find(names->begin(), names->end(), value) == names->end()) {
      refuse_name(where, entry.path(), value, *names);
    }
  }
}

/// Sets the entry to the value of the node. @throws InvalidArgument on another type or an illegal
/// value.
void assign(const std::string& where, const RecipeEntry& entry, const toml::node& node) {
  // Types must be equal, except that an integer is a number too.
  const bool fits = std::visit(
      [&](auto* target) {
        using Value = std::remove_pointer_t<decltype(target)>;
        auto value = node.value_exact<Value>();
        if constexpr (std::is_same_v<Value, double>) {
          if (node.is_integer()) value = node.value<double>();
        }
        if (value) *target = *value;
        return value.has_value();
      },
      entry.value);
  if (!fits) {
    fail<InvalidArgument>("{}{} is {}; {} is required", where, entry.path(), type_name(node),
                          type_name(entry));
  }
  check_legal(where, entry);
}

/// Sets model.name, if it is given, before all other keys: they and their defaults depend on it.
void assign_model_name(Recipe& recipe, const toml::table& document, const std::string& origin) {
  const auto* model = document["model"].as_table();
  const auto name = model == nullptr ? toml::table::const_iterator() : model->find("name");
  if (model == nullptr || name == model->end()) return;
  for (const RecipeEntry& entry : entries(recipe)) {
    if (entry.path() == "model.name") {
      assign(where(origin, name->first.source()), entry, name->second);
    }
  }
  recipe.model = model::default_options(recipe.model.name);
}

/// Gives a key that has the default of the model `before` that of the model named now.
void change_defaults(model::ModelOptions& model, const std::string& before) {
  if (model.enable_weight_tying == model::default_options(before).enable_weight_tying) {
    model.enable_weight_tying = model::default_options(model.name).enable_weight_tying;
  }
}

/// The keys of a section. @throws InvalidArgument if there is no such section.
std::vector<RecipeEntry> section_entries(const std::vector<RecipeEntry>& all,
                                         const std::string& where, const std::string& section) {
  std::vector<RecipeEntry> members;
  Names sections;
  for (const RecipeEntry& entry : all) {
    if (entry.section == section) members.push_back(entry);
    if (sections.empty() || sections.back() != entry.section) sections.push_back(entry.section);
  }
  if (members.empty()) refuse_name(where, "section", section, sections);
  return members;
}

Names keys_of(const std::vector<RecipeEntry>& members) {
  Names keys;
  keys.reserve(members.size());
  for (const RecipeEntry& entry : members) keys.push_back(entry.name);
  return keys;
}

/// Refuses a key of the model `owner` for the model whose keys are `legal`.
[[noreturn]] void refuse_key_of(const std::string& owner, const std::string& where,
                                const std::string& key, const Names& legal) {
  fail<InvalidArgument>(
      "{}key of [model] {} belongs to another model; {} is required; nearest: model.name = "
      "\"{}\"",
      where, quote(key), list_names(legal), owner);
}

/// The entry with this key. @throws InvalidArgument, which says so if the key is of another model.
const RecipeEntry& find_key(const std::vector<RecipeEntry>& members, const std::string& where,
                            const std::string& key) {
  for (const RecipeEntry& entry : members) {
    if (entry.name == key) return entry;
  }
  // Not found. Perhaps another model has the key.
  const Names keys = keys_of(members);
  const std::string& section = members.front().section;
  for (const std::string& name : section == "model" ? model::model_names() : Names()) {
    Recipe other;
    other.model.name = name;
    const std::vector<RecipeEntry> its = entries(other);
    if (std::ranges::any_of(its,
                            [&](const RecipeEntry& f) { return f.path() == "model." + key; })) {
      refuse_key_of(name, where, key, keys);
    }
  }
  refuse_name(where, fmt::format("key of [{}]", section), key, keys);
}

/// Refuses what was given for keys of the model `before` that the model named now lacks; otherwise
/// they would be ignored. A key with its default counts as not given.
void check_keys_given(Recipe& recipe, const std::string& before, const std::string& where) {
  const Names legal = keys_of(section_entries(entries(recipe), where, "model"));
  Recipe copy = recipe;
  Recipe untouched;
  copy.model.name = untouched.model.name = before;
  const std::vector<RecipeEntry> members = section_entries(entries(copy), where, "model");
  const std::vector<RecipeEntry> defaults = section_entries(entries(untouched), where, "model");
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (std::ranges::find(legal, members[i].name) != legal.end()) continue;
    if (toml_text(members[i]) == toml_text(defaults[i])) continue;
    refuse_key_of(before, where, members[i].name, legal);
  }
}

/// The table {value = text}; none if the text is no TOML value: a word, a number of too many
/// digits.
std::optional<toml::table> toml_value(const std::string& text) {
  try {
    return sim::parse_toml("recipe", "value = " + text, "--set");
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
}

/// Sets the entry to a value in TOML, or to a string without quotes, which is taken as it is.
void assign_text(const std::string& where, const RecipeEntry& entry, const std::string& value) {
  const bool quoted = !value.empty() && (value.front() == '"' || value.front() == '\'');
  if (std::holds_alternative<std::string*>(entry.value) && !quoted) {
    return assign(where, entry, toml::value(value));
  }
  const auto document = toml_value(value);
  if (!document) {
    fail<InvalidArgument>("{}{} given; {} is required", where, quote(value), type_name(entry));
  }
  assign(where, entry, *document->get("value"));
}

/// The setting `model.scale`, which is no key: it changes others.
void apply_scale(Recipe& recipe, const std::string& where, const std::string& value) {
  std::string scale;
  assign_text(where, {{"scale", &scale, "", Names{"full", "tiny"}}, "model"}, value);
  if (scale == "tiny") scale_tiny(recipe);
}

}  // namespace

Recipe load_recipe(const std::string& path) {
  const std::string text = read_input(
      {.where = "recipe", .required = "a TOML file", .most_bytes = kMostConfigurationBytes}, path);
  return parse_recipe(text, path);
}

Recipe parse_recipe(std::string_view text, const std::string& origin) {
  Recipe recipe;
  const toml::table document = sim::parse_toml("recipe", text, origin);
  assign_model_name(recipe, document, origin);
  // Section by section, key by key.
  const std::vector<RecipeEntry> all = entries(recipe);
  for (const auto& [name, body] : document) {
    const std::string at_section = where(origin, name.source());
    if (!body.is_table()) {
      fail<InvalidArgument>("{}{} is {}{}; a key in a [section] is required", at_section,
                            excerpt(name.str()), type_name(body),
                            body.is_array() ? "" : " outside any section");
    }
    const auto members = section_entries(all, at_section, std::string(name.str()));
    for (const auto& [key, value] : *body.as_table()) {
      const std::string at_key = where(origin, key.source());
      assign(at_key, find_key(members, at_key, std::string(key.str())), value);
    }
  }
  return recipe;
}

Recipe parse_saved_recipe(std::string_view text, const std::string& origin) {
  Recipe recipe = parse_recipe(text, origin);
  TrainingOptions& training = recipe.training;
  const toml::table document = sim::parse_toml("recipe", text, origin);
  if (!document["training"]["global_batch_size"]) {
    std::swap(training.global_batch_size, training.local_batch_size);
  }
  return recipe;
}

void apply_setting(Recipe& recipe, std::string_view setting) {
  const std::string where = fmt::format("recipe: --set {}: ", excerpt(setting));
  const std::optional<KeyValue> pair = split_key_value(setting);
  if (!pair || pair->key.find('.') == std::string_view::npos) {
    fail<InvalidArgument>("{}it has no '.' or no '='; section.key=value is required", where);
  }
  if (const auto offset = first_invalid_utf8(setting)) {
    fail<InvalidArgument>("recipe: --set {}: not UTF-8 at byte {}; UTF-8 is required",
                          excerpt(pair->key), *offset);
  }
  const std::string value(pair->value);
  if (pair->key == "model.scale") return apply_scale(recipe, where, value);
  if (pair->key == "model.from") return take_model(recipe, value);
  const std::vector<RecipeEntry> all = entries(recipe);
  const std::size_t dot = pair->key.find('.');
  const auto members = section_entries(all, where, std::string(pair->key.substr(0, dot)));
  const RecipeEntry& entry = find_key(members, where, std::string(pair->key.substr(dot + 1)));
  const std::string model_before = recipe.model.name;
  assign_text(where, entry, value);
  check_keys_given(recipe, model_before, where);
  change_defaults(recipe.model, model_before);
}

std::vector<std::string> settings(const Recipe& recipe) {
  Recipe copy = recipe;
  std::vector<std::string> lines;
  for (const RecipeEntry& entry : entries(copy)) {
    const std::string path = entry.path();
    // Paths and output may differ between ranks.
    const bool local = entry.section == "job" || entry.section == "metrics" ||
                       path == "training.dataset_path" || path == "training.validation_path" ||
                       path == "parallelism.proofs";
    if (!local) lines.push_back(fmt::format("{} = {}", path, toml_text(entry)));
  }
  return lines;
}

std::string print_recipe(const Recipe& recipe) {
  Recipe copy = recipe;
  std::string text;
  std::string section;
  for (const RecipeEntry& entry : entries(copy)) {
    if (entry.section != section) {
      section = entry.section;
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    }
    const std::string line = fmt::format("{} = {}", entry.name, toml_text(entry));
    text += fmt::format("{:<42}  # {}\n", line, entry.about);
  }
  return text;
}

}  // namespace armillary::train
