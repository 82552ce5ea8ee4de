// spec.h: reads `name[:part,part,..]`, the form in which masks, layouts and strategies are written.
//
//   window:left=4,right=0       name `window`, keys left and right
//   documents:5,3,within=full   name `documents`, values 5 and 3, key within
//
// Reading is strict: text that is not understood is refused, never skipped. The parameter `where`
// says in error texts what was being read, such as `mask window`. Error texts quote as quote() does
// characters of the user's text. All string views that are returned point into the text that was
// given, and are valid as long as it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace armillary {

/// The parts of `text` between separators, which may be empty; one part if there is no separator.
/// split(",a,", ',') is {"", "a", ""}.
std::vector<std::string_view> split(std::string_view text, char separator);

/// A part `key=value`, such as `left=4`. Either side may be empty.
struct KeyValue {
  std::string_view key;    ///< The text before the first '='.
  std::string_view value;  ///< The text behind the first '=', further '=' included.
};

/// Takes `key=value` apart at its first '='; nothing if `part` has no '='. It judges neither side:
/// whether one may be empty is for the caller to say. "a=b=c" is {"a", "b=c"}, "=" is {"", ""}.
std::optional<KeyValue> split_key_value(std::string_view part);

/// Index of `name` in `choices`.
/// @throws InvalidArgument that lists the choices and, if one is near, the nearest.
std::size_t parse_choice(std::string_view where, std::string_view name,
                         std::span<const std::string_view> choices);

/// A range of whole numbers, both ends included. The default is all that are not negative.
struct IntegerRange {
  std::int64_t min = 0;
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
};

/// Reads decimal digits, with a minus sign before negative numbers; no plus sign, no blanks.
/// @throws InvalidArgument if `text` is anything else, or the number is outside the range.
std::int64_t parse_integer(std::string_view where, std::string_view text, IntegerRange range = {});

/// A specification, split at its first colon. "usp:" has arguments, which are empty; "usp" has
/// none.
struct Spec {
  std::string_view name;                      ///< The text before the colon.
  std::optional<std::string_view> arguments;  ///< The text behind it; nothing without a colon.
};
Spec parse_spec(std::string_view text);

/// The arguments of a specification: parts `value` and `key=value`, separated by commas.
class Arguments {
 public:
  /// Takes `text` apart; without a text there are no parts. `keys` are the keys that are allowed.
  /// @throws InvalidArgument for an empty part or value, a key that is not one of `keys`, or a key
  /// that is given twice.
  Arguments(const std::string& where, std::optional<std::string_view> text,
            std::initializer_list<std::string_view> keys);

  /// The parts without a key, in order.
  const std::vector<std::string_view>& values() const { return values_; }
  /// The only value. @throws InvalidArgument unless there is exactly one; the error text calls it
  /// `what`.
  std::string_view value(std::string_view what) const;
  /// @throws InvalidArgument if there is a value without a key.
  void refuse_values() const;

  /// The value of a key; nothing if the key was not given.
  std::optional<std::string_view> find(std::string_view key) const;
  /// The value of a key as a number. @throws InvalidArgument if the key was not given, or its value
  /// is not a whole number in the range.
  std::int64_t integer(std::string_view key, IntegerRange range = {}) const;

  const std::string& where() const { return where_; }

 private:
  std::string where_;
  std::vector<std::string_view> values_;
  std::vector<KeyValue> keys_;  ///< In the order in which they were given.
};

}  // namespace armillary
