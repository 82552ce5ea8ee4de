// Every reader asks for its key by find(), which notes it for refuse_others(). Messages name the
// line and the path of the key, what was given and what is required.
#include "armillary/sim/toml_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/spec.h"

namespace armillary::sim {
namespace {

/// A value as messages show it.
std::string text(const toml::node& node) {
  if (node.is_table()) return "a table";
  if (node.is_array()) return "a list";
  std::string result;
  node.visit([&](const auto& value) {
    if constexpr (toml::is_value<decltype(value)>) {
      if constexpr (toml::is_string<decltype(value)>) {
        result = fmt::format("'{}'", value.get());
      } else if constexpr (toml::is_number<decltype(value)> || toml::is_boolean<decltype(value)>) {
        result = fmt::format("{}", value.get());
      } else {
        result = "a date or time";
      }
    }
  });
  return result;
}

}  // namespace

TomlTable::TomlTable(const toml::table& table, std::string origin, std::string path)
    : table_(table), origin_(std::move(origin)), path_(std::move(path)) {}

std::string TomlTable::where(const toml::node* node) const {
  const toml::source_region& source = node == nullptr ? table_.source() : node->source();
  return fmt::format("cluster: {}:{}: ", origin_, source.begin.line);
}

std::string TomlTable::path(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

const toml::node* TomlTable::find(std::string_view key) {
  if (std::ranges::find(asked_, key) == asked_.end()) asked_.emplace_back(key);
  return table_.get(key);
}

const toml::node& TomlTable::get(std::string_view key) {
  const toml::node* node = find(key);
  if (node == nullptr) {
    std::vector<std::string> given;
    for (const auto& [name, value] : table_) given.emplace_back(name.str());
    const std::string nearest = nearest_name(key, given);
    fail<InvalidArgument>("{}{} is missing; this key is required{}", where(), path(key),
                          nearest.empty() ? "" : "; nearest of those given: " + nearest);
  }
  return *node;
}

std::optional<double> TomlTable::number(std::string_view key, Sign sign) {
  const toml::node* node = find(key);
  if (node == nullptr) return std::nullopt;
  return to_number(*node, path(key), sign);
}

double TomlTable::required(std::string_view key) {
  get(key);
  return *number(key, Sign::Positive);
}

int TomlTable::count(std::string_view key) {
  const toml::node& node = get(key);
  const std::optional<std::int64_t> value = node.value_exact<std::int64_t>();
  if (!value || *value < 1 || *value > plan::kMaxWorld) {
    fail<InvalidArgument>("{}{} is {}; a whole number from 1 to {} is required", where(&node),
                          path(key), text(node), plan::kMaxWorld);
  }
  return static_cast<int>(*value);
}

std::string TomlTable::string(std::string_view key) {
  return to_string(get(key), path(key));
}

std::string TomlTable::string_or(std::string_view key, std::string otherwise) {
  const toml::node* node = find(key);
  return node == nullptr ? std::move(otherwise) : to_string(*node, path(key));
}

std::size_t TomlTable::choice(std::string_view key, std::span<const std::string_view> choices) {
  const toml::node& node = get(key);
  return parse_choice(where(&node) + path(key), to_string(node, path(key)), choices);
}

bool TomlTable::flag(std::string_view key, bool otherwise) {
  const toml::node* node = find(key);
  if (node == nullptr) return otherwise;
  const std::optional<bool> value = node->value_exact<bool>();
  if (!value) {
    fail<InvalidArgument>("{}{} is {}; true or false is required", where(node), path(key),
                          text(*node));
  }
  return *value;
}

std::vector<RatePoint> TomlTable::points(std::string_view key, double unit) {
  std::vector<RatePoint> points;
  const toml::node* node = find(key);
  if (node == nullptr) return points;
  for (const toml::node& item : array(*node, path(key))) {
    const toml::array& pair = array(item, path(key));
    if (pair.size() != 2) {
      fail<InvalidArgument>("{}{} has an item of {} numbers; [size, rate] is required",
                            where(&item), path(key), pair.size());
    }
    points.push_back({to_number(pair[0], path(key), Sign::Positive),
                      unit * to_number(pair[1], path(key), Sign::Positive)});
    if (points.size() > 1 && points[points.size() - 2].size >= points.back().size) {
      fail<InvalidArgument>("{}{}: size {} after {}; ascending sizes are required", where(&item),
                            path(key), points.back().size, points[points.size() - 2].size);
    }
  }
  return points;
}

std::vector<double> TomlTable::numbers(std::string_view key) {
  std::vector<double> values;
  const toml::node* node = find(key);
  if (node == nullptr) return values;
  for (const toml::node& item : array(*node, path(key))) {
    values.push_back(to_number(item, path(key), Sign::Positive));
  }
  return values;
}

TomlTable TomlTable::table(std::string_view key) {
  const toml::node& node = get(key);
  if (!node.is_table()) {
    fail<InvalidArgument>("{}{} is {}; a table is required", where(&node), path(key), text(node));
  }
  return {*node.as_table(), origin_, path(key)};
}

std::vector<TomlTable> TomlTable::tables(std::string_view key) {
  std::vector<TomlTable> all;
  const toml::node* node = find(key);
  if (node == nullptr) return all;
  for (const toml::node& item : array(*node, path(key))) {
    if (!item.is_table()) {
      fail<InvalidArgument>("{}{} has {}; tables [[{}]] are required", where(&item), path(key),
                            text(item), path(key));
    }
    all.emplace_back(*item.as_table(), origin_, path(key));
  }
  return all;
}

void TomlTable::refuse_others() const {
  for (const auto& [key, node] : table_) {
    const std::string name(key.str());
    if (std::find(asked_.begin(), asked_.end(), name) != asked_.end()) continue;
    const std::string nearest = nearest_name(name, asked_);
    fail<InvalidArgument>("cluster: {}:{}: {} is not a known key; {} is required{}", origin_,
                          key.source().begin.line, path(name), list_names(asked_),
                          nearest.empty() ? "" : "; nearest: " + nearest);
  }
}

const toml::array& TomlTable::array(const toml::node& node, const std::string& path) const {
  if (!node.is_array()) {
    fail<InvalidArgument>("{}{} is {}; a list is required", where(&node), path, text(node));
  }
  return *node.as_array();
}

double TomlTable::to_number(const toml::node& node, const std::string& path, Sign sign) const {
  const std::optional<double> value = node.is_number() ? node.value<double>() : std::nullopt;
  // Sizes beyond these are mistakes, and products with them would leave the range of a double.
  constexpr double kLeast = 1e-12;
  constexpr double kMost = 1e24;
  const bool legal = value && (*value > 0 || (sign == Sign::NotNegative && *value == 0));
  if (!legal || std::isinf(*value)) {
    fail<InvalidArgument>("{}{} is {}; a number {} is required", where(&node), path, text(node),
                          sign == Sign::Positive ? "above 0" : "of at least 0");
  }
  if (*value != 0 && (*value < kLeast || *value > kMost)) {
    fail<InvalidArgument>("{}{} is {}; a number from {} to {} is required", where(&node), path,
                          text(node), kLeast, kMost);
  }
  return *value;
}

std::string TomlTable::to_string(const toml::node& node, const std::string& path) const {
  const std::optional<std::string> value = node.value_exact<std::string>();
  if (!value) {
    fail<InvalidArgument>("{}{} is {}; a text is required", where(&node), path, text(node));
  }
  return *value;
}

toml::table parse_toml(std::string_view text, const std::string& origin) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    fail<InvalidArgument>("cluster: {}:{}: {}; TOML is required", origin, error.source().begin.line,
                          error.description());
  }
}

}  // namespace armillary::sim
