// json_node.h: values of JSON as programs and plans are read: every error names the place. Internal
// to plan.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/json_text.h"
#include "armillary/core/names.h"
#include "armillary/core/user_text.h"

namespace armillary::plan {

using Json = nlohmann::ordered_json;  // Keys in the order they are written: for human readers.

/// A JSON value and the path to it: `ranks[0].ops[3].lane`. Every accessor checks the type of the
/// value and throws InvalidArgument with the path if it is another one.
class Node {
 public:
  Node(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  /// Throws: the path, the value (shortened), and what is required instead.
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> required, Args&&... args) const {
    fail<InvalidArgument>("parse_json: {} is {}; {} is required",
                          path_.empty() ? "the text" : path_, shorten(json_text(json_), 40),
                          fmt::format(required, std::forward<Args>(args)...));
  }

  /// Checks that this is an object with known keys only; the error names the nearest known key.
  const Node& object(const std::vector<std::string>& keys) const {
    if (!json_.is_object()) refuse("an object");
    for (const auto& [key, value] : json_.items()) {
      if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
      const std::string nearest = nearest_name(key, keys);
      fail<InvalidArgument>("parse_json: {} is not a known key; {} is required{}", path_to(key),
                            list_names(keys),
                            nearest.empty() ? "" : "; nearest: '" + nearest + "'");
    }
    return *this;
  }

  bool has(std::string_view key) const { return json_.contains(key); }

  /// The value of a key, which must be there.
  Node operator[](std::string_view key) const {
    const auto entry = json_.find(key);
    if (entry == json_.end()) {
      fail<InvalidArgument>("parse_json: {} is missing; this key is required", path_to(key));
    }
    return {*entry, path_to(key)};
  }

  /// An integer that fits T. The library would truncate fractions and wrap integers of 2^63 and
  /// more, so both are refused first.
  template <class T>
  T integer() const {
    const bool too_large =
        json_.is_number_unsigned() &&
        json_.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()};
    const auto value = json_.is_number_integer() && !too_large ? json_.get<std::int64_t>() : 0;
    if (!json_.is_number_integer() || too_large || value < std::numeric_limits<T>::min() ||
        value > std::numeric_limits<T>::max()) {
      refuse("an integer of {} bits", 8 * sizeof(T));
    }
    return static_cast<T>(value);
  }

  /// Elements of an array, keys of an object.
  std::size_t size() const { return json_.size(); }

  bool boolean() const {
    if (!json_.is_boolean()) refuse("true or false");
    return json_.get<bool>();
  }

  std::string text() const {
    if (!json_.is_string()) refuse("a string");
    return json_.get<std::string>();
  }

  /// An array, each element read by `read`.
  template <class Read>
  auto list(Read read) const {
    if (!json_.is_array()) refuse("an array");
    // Each element is a Node of its own, with its index in the path.
    std::vector<decltype(read(*this))> values;
    values.reserve(json_.size());
    for (std::size_t i = 0; i < json_.size(); ++i) {
      values.push_back(read(Node(json_[i], fmt::format("{}[{}]", path_, i))));
    }
    return values;
  }

  std::vector<int> integers() const {
    return list([](const Node& node) { return node.integer<int>(); });
  }

  /// An array of two integers.
  template <class T>
  std::pair<T, T> range() const {
    if (!json_.is_array() || json_.size() != 2) refuse("an array of begin and end");
    const auto ends = list([](const Node& node) { return node.integer<T>(); });
    return {ends[0], ends[1]};
  }

  /// The place of this string in a list of names.
  std::size_t place_in(const std::vector<std::string>& names) const {
    const auto entry = std::find(names.begin(), names.end(), text());
    if (entry == names.end()) refuse("{}", list_names(names));
    return static_cast<std::size_t>(entry - names.begin());
  }

  /// The one of `values` whose name this string is.
  template <class Values>
  auto name_of(const Values& values) const {
    std::vector<std::string> names;
    names.reserve(values.size());
    for (const auto value : values) names.emplace_back(to_string(value));
    return values[place_in(names)];
  }

  /// The result of `make`. If it throws InvalidArgument, the path is put before its text.
  template <class Make>
  auto checked(Make make) const {
    try {
      return make();
    } catch (const InvalidArgument& error) {
      fail<InvalidArgument>("parse_json: {}: {}", path_, error.what());
    }
  }

 private:
  std::string path_to(std::string_view key) const {
    const std::string name = excerpt(key);
    return path_.empty() ? name : fmt::format("{}.{}", path_, name);
  }

  const Json& json_;
  std::string path_;
};

}  // namespace armillary::plan
