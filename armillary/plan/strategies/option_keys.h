// option_keys.h: keys of a strategy, each tied to the member of its options that it sets.
//
//   number_key("u", "U", &UspOptions::u, kRequired)       u=4
//   choice_key("inner", &UspOptions::inner, {..})         inner=ring
//   flag_key("traffic", &AutomaticOptions::traffic)       traffic
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"
#include "armillary/plan/strategies/strategy.h"

namespace armillary::plan {

inline constexpr bool kRequired = true;

/// A key whose text is read by `parse(what, value)` and printed by `print(member)`.
template <class O, class T, class Parse, class Print>
StrategyKey option_key(StrategyKey key, T O::*member, const Parse& parse, const Print& print) {
  key.set = [member, parse](Options& options, const std::string& what, const std::string& value) {
    O changed = options_as<O>(options);
    changed.*member = parse(what, value);
    options = changed;
  };
  key.text = [member, print](const Options& options) -> std::optional<std::string> {
    const O own = options_as<O>(options);
    if (own.*member == O{}.*member) return std::nullopt;
    return print(own.*member);
  };
  return key;
}

/// A key that takes a whole number of at least 1, which help texts call `letter`.
template <class O>
StrategyKey number_key(const std::string& name, const std::string& letter, int O::*member,
                       bool required = false) {
  return option_key(
      {.name = name, .values = letter, .required = required}, member,
      [](const std::string& what, const std::string& value) {
        return static_cast<int>(parse_integer(what, value, {1, std::numeric_limits<int>::max()}));
      },
      [name](int value) {
        if (value >= 1) return std::to_string(value);
        fail<InvalidArgument>("strategy: {}={} given; a whole number of at least 1 is required",
                              name, value);
      });
}

/// A key that takes one of some names, each for a value of the member.
template <class O, class T>
StrategyKey choice_key(const std::string& name, T O::*member,
                       const std::vector<std::pair<std::string_view, T>>& choices) {
  std::vector<std::string_view> names;
  std::string values;
  for (const auto& [text, value] : choices) {
    values += (values.empty() ? "" : "|") + std::string(text);
    names.push_back(text);
  }
  return option_key(
      {.name = name, .values = values}, member,
      [choices, names](const std::string& what, const std::string& value) {
        return choices[parse_choice(what, value, names)].second;
      },
      [choices, name](T value) {
        for (const auto& [text, known] : choices) {
          if (known == value) return std::string(text);
        }
        fail<InvalidArgument>("strategy: {} has a value without a name", name);
      });
}

/// A required key that is written without a value.
template <class O>
StrategyKey flag_key(const std::string& name, bool O::*member) {
  return option_key(
      {.name = name, .values = "", .required = kRequired}, member,
      [](const std::string& what, const std::string& value) {
        if (value.empty()) return true;
        fail<InvalidArgument>("{}: {} given; it takes no value", what, quote(value));
      },
      [](bool) { return std::string(); });
}

}  // namespace armillary::plan
