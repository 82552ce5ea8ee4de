// Every reader asks for its key by find(), which notes it for refuse_others(). Messages name the
// line and the path of the key, what was given and what is required.
#include "armillary/predict/sim/toml_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"

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
        result = quote(value.get());
      } else if constexpr (toml::is_number<decltype(value)> || toml::is_boolean<decltype(value)>) {
        result = fmt::format("{}", value.get());
      } else {
        result = "a date or time";
      }
    }
  });
  return result;
}

/// Most dots of a key: `device.host.name` has two.
constexpr int kMostKeyDots = 16;

/// Offset behind the string that begins at `text[at]` with a quote, of one line or of several.
std::size_t string_end(std::string_view text, std::size_t at) {
  const std::string_view three = text.substr(at, 3);
  const bool lines = three == "\"\"\"" || three == "'''";
  const std::string_view end = text.substr(at, lines ? 3 : 1);
  for (std::size_t i = at + end.size(); i < text.size(); ++i) {
    if (text[i] == '\\' && end.front() == '"') {
      ++i;
    } else if (text.substr(i).starts_with(end)) {
      return i + end.size();
    } else if (text[i] == '\n' && !lines) {
      return i;
    }
  }
  return text.size();
}

/// Line of the first key of more dots; 0 if there is none. Each dot is a table in a table, which
/// the library takes apart by recursion.
int line_of_deep_key(std::string_view text) {
  int line = 1;
  int dots = 0;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      const std::size_t end = string_end(text, i);
      line += static_cast<int>(std::ranges::count(text.substr(i, end - i), '\n'));
      i = end;
      continue;
    }
    if (c == '#') i = std::min(text.find('\n', i), text.size() - 1);
    if (std::string_view("=,[]{}\n").find(text[i]) != std::string_view::npos) dots = 0;
    if (c == '.' && ++dots > kMostKeyDots) return line;
    if (text[i] == '\n') ++line;
    ++i;
  }
  return 0;
}

}  // namespace

TomlTable::TomlTable(const toml::table& table, std::string origin, std::string path)
    : table_(table), origin_(std::move(origin)), path_(std::move(path)) {}

std::string TomlTable::where(const toml::node* node) const {
  const toml::source_region& source = node == nullptr ? table_.source() : node->source();
  return fmt::format("cluster: {}:{}: ", excerpt(origin_), source.begin.line);
}

std::string TomlTable::path(std::string_view key) const {
  const std::string name = excerpt(key);
  return path_.empty() ? name : fmt::format("{}.{}", path_, name);
}

const toml::node* TomlTable::find(std::string_view key) {
  // Keys that are asked for twice are named once in messages.
  if (std::ranges::find(asked_, key) == asked_.end()) asked_.emplace_back(key);
  return table_.get(key);
}

const toml::node& TomlTable::get(std::string_view key) {
  const toml::node* node = find(key);
  if (node == nullptr) {
    std::vector<std::string> texts;
    for (const auto& [name, value] : table_) texts.emplace_back(name.str());
    const std::string nearest = nearest_name(key, texts);
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
  // value_exact() takes no number for a bool.
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
      fail<InvalidArgument>("{}{} has an item of {}; [size, rate] is required", where(&item),
                            path(key), count_of(pair.size(), "number"));
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
    fail<InvalidArgument>("cluster: {}:{}: {} is not a known key; {} is required{}",
                          excerpt(origin_), key.source().begin.line, path(name), list_names(asked_),
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
  // Names are printed: what would move a terminal's cursor, or fill it, is no name.
  if (printable(*value) != *value || value->size() > kMostQuotedBytes) {
    fail<InvalidArgument>(
        "{}{} is {}; a text of at most {} bytes without control characters is required",
        where(&node), path, quote(*value), kMostQuotedBytes);
  }
  return *value;
}

toml::table parse_toml(std::string_view where, std::string_view text, const std::string& origin) {
  if (const auto byte = first_invalid_utf8(text)) {
    fail<InvalidArgument>("{}: {}: not UTF-8 at byte {}; TOML is required, which is UTF-8", where,
                          excerpt(origin), *byte);
  }
  if (const int line = line_of_deep_key(text); line > 0) {
    fail<InvalidArgument>("{}: {}:{}: a key of more than {} dots; a [table] and a key are required",
                          where, excerpt(origin), line, kMostKeyDots);
  }
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    const auto [line, column] = error.source().begin;
    // The library tells of a name that is taken at the place of the second one.
    const bool doubled = error.description().find("redefine") != std::string_view::npos;
    const auto lines = split(text, '\n');
    const std::string_view value = line <= lines.size() ? lines[line - 1] : "";
    fail<InvalidArgument>("{}: {}:{}: {} {} at column {}; {}", where, excerpt(origin), line,
                          quote(value), doubled ? "gives a name again" : "is no TOML", column,
                          doubled ? "each key and [table] once is required"
                                  : "TOML is required: [table], key = value, # comment");
  }
}

}  // namespace armillary::sim
