// spec.h: reads `name[:part,part,..]`, the form in which masks, layouts and strategies are written.
//
//   window:left=4,right=0       name `window`, keys left and right
//   documents:5,3,within=full   name `documents`, values 5 and 3, key within
//
// Strict: what is not understood is refused, never skipped. `where` in the errors is what was being
// read, such as `mask window`; of long texts they quote 60 characters. Views point into the text
// that was given and live as long as it does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace armillary {

/// The parts of `text` between separators; one part if there is no separator.
std::vector<std::string_view> split(std::string_view text, char separator);

/// Index of `name` in `choices`. @throws InvalidArgument that lists the choices and the nearest.
std::size_t parse_choice(std::string_view where, std::string_view name,
                         std::span<const std::string_view> choices);

struct IntegerRange {
  std::int64_t min = 0;
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
};

/// Decimal digits, with a minus sign if the range has negative numbers; no plus, no blanks.
/// @throws InvalidArgument if it is something else or outside the range.
std::int64_t parse_integer(std::string_view where, std::string_view text, IntegerRange range = {});

/// `name` and what follows the first colon, if there is one.
struct Spec {
  std::string_view name;
  std::optional<std::string_view> arguments;
};
Spec parse_spec(std::string_view text);

/// What follows the colon, taken apart.
class Arguments {
 public:
  /// @throws InvalidArgument for an empty part, a key that is not one of `keys`, or one given
  /// twice.
  Arguments(std::string where, std::optional<std::string_view> text,
            std::initializer_list<std::string_view> keys);

  /// Parts without a key, in order.
  const std::vector<std::string_view>& values() const { return values_; }
  /// The only value. @throws InvalidArgument unless there is exactly one; says it must be `what`.
  std::string_view value(std::string_view what) const;
  /// @throws InvalidArgument if there is a value without a key.
  void refuse_values() const;

  std::optional<std::string_view> find(std::string_view key) const;
  /// Number of a key that must be there.
  std::int64_t integer(std::string_view key, IntegerRange range = {}) const;

  const std::string& where() const { return where_; }

 private:
  std::string where_;
  std::vector<std::string_view> values_;
  std::vector<std::pair<std::string_view, std::string_view>> keys_;
};

}  // namespace armillary
