// Nearest names by edit distance, and lists of names in prose, for error texts.
#include "armillary/core/names.h"

#include <fmt/format.h>

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
    // A distance is at least the difference of the lengths: names of megabytes are not compared.
    if (name.size() > choice.size() + best_distance) continue;
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

std::string list_numbers(std::span<const int> ascending, std::string_view before_last) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ascending.size();) {
    std::size_t end = i + 1;  // of the run that begins with i
    while (end < ascending.size() && ascending[end] == ascending[end - 1] + 1) ++end;
    if (end - i >= 3) {
      parts.push_back(fmt::format("{} to {}", ascending[i], ascending[end - 1]));
    } else {
      end = i + 1;
      parts.push_back(std::to_string(ascending[i]));
    }
    i = end;
  }
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size();
    text += fmt::format("{}{}", i == 0 ? "" : last ? before_last : ", ", parts[i]);
  }
  return text;
}

}  // namespace armillary
