// recipe.cpp: reads, changes, checks and prints recipes by the table of recipe_fields.h.
//
// Every text, from a file or a setting, goes the same way: find the section, find the key, `assign`
// the value with its type, check that it is legal. model.name goes first, because the keys of
// [model] depend on it. Errors name file, line and key, and the nearest legal name.
#include "armillary/train/recipe.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <type_traits>
#include <variant>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/input_file.h"
#include "armillary/core/names.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"
#include "armillary/plan/strategy.h"
#include "armillary/sim/toml_table.h"
#include "armillary/train/data.h"
#include "armillary/train/estimate.h"
#include "armillary/train/models/registry.h"
#include "armillary/train/recipe_fields.h"
#include "armillary/tune/automatic.h"

namespace armillary::train {
namespace {

using Names = std::vector<std::string>;

/// The type that a key requires.
std::string type_name(const Field& field) {
  static constexpr const char* kNames[] = {"a boolean", "an integer", "a number", "a string"};
  return kNames[field.value.index()];
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
std::string toml_text(const Field& field) {
  const auto* number = std::get_if<double*>(&field.value);
  if (number != nullptr && !std::isfinite(**number)) return fmt::format("{}", **number);
  return std::visit([](const auto* value) { return nlohmann::json(*value).dump(); }, field.value);
}

/// `where` is the start of every message: "recipe: default.toml:12: ".
std::string where(const std::string& origin, const toml::source_region& source) {
  return fmt::format("recipe: {}:{}: ", origin, source.begin.line);
}

/// Refuses a name with the legal ones and the nearest of them. `what` says what it names.
[[noreturn]] void refuse_name(const std::string& where, const std::string& what,
                              const std::string& given, const Names& legal) {
  const std::string nearest = nearest_name(given, legal);
  fail<InvalidArgument>("{}{} {} is not known; {} is required{}", where, what, quote(given),
                        list_names(legal), nearest.empty() ? "" : "; nearest: " + nearest);
}

/// The value of a field that holds a number.
double number(const Field& field) {
  if (const auto* value = std::get_if<double*>(&field.value)) return **value;
  return static_cast<double>(*std::get<std::int64_t*>(field.value));
}

/// Checks the value of a field against its legal values.
void check_legal(const std::string& where, const Field& field) {
  if (const auto* range = std::get_if<Range>(&field.legal)) {
    // Negated, so that NaN is refused too.
    if (!(number(field) >= range->min && number(field) <= range->max)) {
      fail<InvalidArgument>("{}{} = {}; a value {} is required", where, field.path(),
                            toml_text(field), range->text);
    }
  } else if (const auto* names = std::get_if<Names>(&field.legal)) {
    const std::string& value = *std::get<std::string*>(field.value);
    if (std::find(names->begin(), names->end(), value) == names->end()) {
      refuse_name(where, field.path(), value, *names);
    }
  }
}

/// Sets the field to the value of the node. @throws InvalidArgument on another type or an illegal
/// value.
void assign(const std::string& where, const Field& field, const toml::node& node) {
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
      field.value);
  if (!fits) {
    fail<InvalidArgument>("{}{} is {}; {} is required", where, field.path(), type_name(node),
                          type_name(field));
  }
  check_legal(where, field);
}

/// Sets model.name, if it is given, before all other keys: they depend on it.
void assign_model_name(Recipe& recipe, const toml::table& document, const std::string& origin) {
  const auto* model = document["model"].as_table();
  const auto name = model == nullptr ? toml::table::const_iterator() : model->find("name");
  if (model == nullptr || name == model->end()) return;
  for (const Field& field : fields(recipe)) {
    if (field.path() == "model.name") {
      assign(where(origin, name->first.source()), field, name->second);
    }
  }
}

/// The fields of a section. @throws InvalidArgument if there is no such section.
std::vector<Field> section_fields(const std::vector<Field>& all, const std::string& where,
                                  const std::string& section) {
  std::vector<Field> members;
  Names sections;
  for (const Field& field : all) {
    if (field.section == section) members.push_back(field);
    if (sections.empty() || sections.back() != field.section) sections.push_back(field.section);
  }
  if (members.empty()) refuse_name(where, "section", section, sections);
  return members;
}

Names keys_of(const std::vector<Field>& members) {
  Names keys;
  keys.reserve(members.size());
  for (const Field& field : members) keys.push_back(field.key);
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

/// The field with this key. @throws InvalidArgument, which says so if the key is of another model.
const Field& find_key(const std::vector<Field>& members, const std::string& where,
                      const std::string& key) {
  for (const Field& field : members) {
    if (field.key == key) return field;
  }
  // Not found. Perhaps another model has the key.
  const Names keys = keys_of(members);
  const std::string& section = members.front().section;
  for (const std::string& name : section == "model" ? model_names() : Names()) {
    Recipe other;
    other.model.name = name;
    const std::vector<Field> its = fields(other);
    if (std::ranges::any_of(its, [&](const Field& f) { return f.path() == "model." + key; })) {
      refuse_key_of(name, where, key, keys);
    }
  }
  refuse_name(where, fmt::format("key of [{}]", section), key, keys);
}

/// Refuses what was given for keys of the model `before` that the model named now lacks; otherwise
/// they would be ignored. A key with its default counts as not given.
void check_keys_given(Recipe& recipe, const std::string& before, const std::string& where) {
  const Names legal = keys_of(section_fields(fields(recipe), where, "model"));
  Recipe given = recipe;
  Recipe untouched;
  given.model.name = untouched.model.name = before;
  const std::vector<Field> members = section_fields(fields(given), where, "model");
  const std::vector<Field> defaults = section_fields(fields(untouched), where, "model");
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (std::ranges::find(legal, members[i].key) != legal.end()) continue;
    if (toml_text(members[i]) == toml_text(defaults[i])) continue;
    refuse_key_of(before, where, members[i].key, legal);
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
  const std::vector<Field> all = fields(recipe);
  for (const auto& [name, body] : document) {
    const std::string at_section = where(origin, name.source());
    if (!body.is_table()) {
      fail<InvalidArgument>("{}{} is {}{}; a key in a [section] is required", at_section,
                            shorten(printable(name.str()), kMostQuotedBytes), type_name(body),
                            body.is_array() ? "" : " outside any section");
    }
    const auto members = section_fields(all, at_section, std::string(name.str()));
    for (const auto& [key, value] : *body.as_table()) {
      const std::string at_key = where(origin, key.source());
      assign(at_key, find_key(members, at_key, std::string(key.str())), value);
    }
  }
  return recipe;
}

void apply_setting(Recipe& recipe, std::string_view setting) {
  const std::string where =
      fmt::format("recipe: --set {}: ", shorten(printable(setting), kMostQuotedBytes));
  const std::optional<KeyValue> given = split_key_value(setting);
  if (!given || given->key.find('.') == std::string_view::npos) {
    fail<InvalidArgument>("{}it has no '.' or no '='; section.key=value is required", where);
  }
  if (const auto offset = first_invalid_utf8(setting)) {
    fail<InvalidArgument>("recipe: --set {}: not UTF-8 at byte {}; UTF-8 is required",
                          shorten(printable(given->key), kMostQuotedBytes), *offset);
  }
  const std::vector<Field> all = fields(recipe);
  const std::size_t dot = given->key.find('.');
  const auto members = section_fields(all, where, std::string(given->key.substr(0, dot)));
  const Field& field = find_key(members, where, std::string(given->key.substr(dot + 1)));
  const std::string model_before = recipe.model.name;
  const std::string value(given->value);
  // A string may stand without quotes: such a value is taken as it is.
  const bool quoted = !value.empty() && (value.front() == '"' || value.front() == '\'');
  if (std::holds_alternative<std::string*>(field.value) && !quoted) {
    assign(where, field, toml::value(value));
  } else {
    const auto document = toml_value(value);
    if (!document) {
      fail<InvalidArgument>("{}{} given; {} is required", where, quote(value), type_name(field));
    }
    assign(where, field, *document->get("value"));
  }
  check_keys_given(recipe, model_before, where);
}

std::string checkpoint_folder(const Recipe& recipe) {
  return recipe.job.dump_folder + "/" + recipe.checkpoint.folder;
}

MeshShape mesh_of(const Recipe& recipe) {
  const Recipe::Parallelism& axes = recipe.parallelism;
  return {.pp = static_cast<int>(axes.pipeline_parallel_degree),
          .dp = static_cast<int>(axes.data_parallel_replicate_degree),
          .cp = static_cast<int>(axes.context_parallel_degree),
          .tp = static_cast<int>(axes.tensor_parallel_degree)};
}

void validate(const Recipe& recipe) {
  if (recipe.job.dump_folder.empty()) {
    fail<InvalidArgument>("recipe: job.dump_folder is empty; a folder is required");
  }
  if (recipe.checkpoint.folder.empty()) {
    fail<InvalidArgument>("recipe: checkpoint.folder is empty; a folder is required");
  }
  check_model(recipe.model);
  const MeshShape mesh = mesh_of(recipe);
  check_mesh(mesh, mesh.cp);  // ranks are launched along cp only
  if (tune::is_automatic(recipe.parallelism.strategy)) {
    return tune::check_strategy_text(recipe.parallelism.strategy);
  }
  // Real documents are not known yet. One document as long as the sequence is legal in every mask
  // that is legal with any documents.
  const plan::Mask mask =
      sequence_mask(recipe.parallelism.mask, std::span(&recipe.training.seq_len, 1));
  plan::check_legal(attention_problem(recipe, mask),
                    plan::parse_strategy(recipe.parallelism.strategy));
}

std::vector<std::string> settings(const Recipe& recipe) {
  Recipe copy = recipe;
  std::vector<std::string> lines;
  for (const Field& field : fields(copy)) {
    const std::string path = field.path();
    // Paths and output may differ between ranks.
    const bool local = field.section == "job" || field.section == "metrics" ||
                       path == "training.dataset_path" || path == "parallelism.proofs";
    if (!local) lines.push_back(fmt::format("{} = {}", path, toml_text(field)));
  }
  return lines;
}

std::string print_recipe(const Recipe& recipe) {
  Recipe copy = recipe;
  std::string text;
  std::string section;
  for (const Field& field : fields(copy)) {
    if (field.section != section) {
      section = field.section;
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    }
    const std::string line = fmt::format("{} = {}", field.key, toml_text(field));
    text += fmt::format("{:<42}  # {}\n", line, field.about);
  }
  return text;
}

}  // namespace armillary::train
