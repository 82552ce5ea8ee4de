// names.h: helpers for error texts about names that are not known: the nearest known name, and a
// list of all; and for lists of numbers, such as those of ranks.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace armillary {

/// The choice nearest to `name` by edit distance (insertions, deletions and substitutions of one
/// character); the first of equally near ones. Empty if no distance is at most a third of the
/// length of `name`, rounded down, plus two: "casual" finds "causal", "x" finds nothing that is
/// longer than three letters. Cost: product of the two lengths, per choice.
std::string nearest_name(std::string_view name, std::span<const std::string> choices);

/// The names as a list in prose: "a, b or c".
std::string list_names(std::span<const std::string> names);

/// Ascending numbers in prose, with three or more that follow one another as a range: "0, 2 to 15
/// and 17", or with another text before the last. Thousands of ranks stay one line.
std::string list_numbers(std::span<const int> ascending, std::string_view before_last = " and ");

}  // namespace armillary
