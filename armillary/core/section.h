// section.h: a section of a recipe as a table of keys. A section is a struct of the room that reads
// it, with its table beside it (section_of), so a new key is one member and one row there;
// train/recipe.h gathers the sections.
//
//   {"steps", &training.steps, "optimizer steps", at_least(1)}
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

namespace armillary {

/// Legal values of a number.
struct Range {
  double min = 0;  ///< Both ends are legal.
  double max = 0;
  std::string text;  ///< The range in words, for errors: "at least 1".
};

Range at_least(std::int64_t min);
Range between(std::int64_t min, std::int64_t max);
Range above_zero(double max = std::numeric_limits<double>::max());
Range below_one();  ///< From 0 on.
Range above_one();  ///< To infinity.

/// Plans store heads and widths as `int`.
inline constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();

using Names = std::vector<std::string>;

/// One key of a section.
struct Key {
  std::string name;
  /// The member that holds its value; its type is the type of the key.
  std::variant<bool*, std::int64_t*, double*, std::string*> value;
  std::string about;  ///< Meaning, as a printed recipe has it behind the value.
  /// Legal values: any, a range of numbers, or one of these strings.
  std::variant<std::monostate, Range, Names> legal = {};
};

/// A section, in the order in which it is printed. The values point into its struct, which must
/// outlive them.
struct Section {
  std::string name;
  std::vector<Key> keys;
};

}  // namespace armillary
