// Nearest names by edit distance, and lists of names in prose, for error texts.
#include "armillary/core/names.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace armillary {
namespace {

/// Levenshtein distance, with one row of the table in memory.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];  // Entry (i - 1, j - 1) of the table.
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string> choices) {
  std::string best;
  // A choice must be strictly nearer than this: longer names may have more errors.
  std::size_t best_distance = name.size() / 3 + 3;
  for (const std::string& choice : choices) {
    const std::size_t distance = edit_distance(name, choice);
    if (distance < best_distance) {
      best_distance = distance;
      best = choice;
    }
  }
  return best;
}

std::string list_names(std::span<const std::string> names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += names[i];
  }
  return text;
}

}  // namespace armillary
