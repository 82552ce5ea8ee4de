// recipe_fields.h: the vocabulary of recipes as a table, read by all that recipe.h declares.
// A new key is one member of Recipe and one row here.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "armillary/train/recipe.h"

namespace armillary::train {

/// Legal values of a number, and how to say so: "at least 1".
struct Range {
  double min = 0;
  double max = 0;
  std::string text;
};

/// One key: where its value lives, what it means and which values are legal.
struct Field {
  std::string section;
  std::string key;
  std::variant<bool*, std::int64_t*, double*, std::string*> value;
  std::string about;
  std::variant<std::monostate, Range, std::vector<std::string>> legal = {};

  std::string path() const { return section + "." + key; }
};

/// All keys, by section, in the order in which they are printed. They point into `recipe`.
std::vector<Field> fields(Recipe& recipe);

}  // namespace armillary::train
