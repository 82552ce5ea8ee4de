// recipe_fields.h: the keys of recipes as a table. Every function of recipe.h works from it, so a
// new key is one member of Recipe and one row of recipe_fields.cpp.
//
//   {"training", "steps", &recipe.training.steps, "optimizer steps", at least 1}
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "armillary/train/recipe.h"

namespace armillary::train {

/// Legal values of a number.
struct Range {
  double min = 0;  ///< Both ends are legal.
  double max = 0;
  std::string text;  ///< The range in words, for errors: "at least 1".
};

/// One key of a recipe.
struct Field {
  std::string section;
  std::string key;
  /// The member of the recipe that holds its value; its type is the type of the key.
  std::variant<bool*, std::int64_t*, double*, std::string*> value;
  std::string about;  ///< Meaning, as print_recipe writes it behind the value.
  /// Legal values: any, a range of numbers, or one of these strings.
  std::variant<std::monostate, Range, std::vector<std::string>> legal = {};

  /// Name in settings and errors: "training.steps".
  std::string path() const { return section + "." + key; }
};

/// All keys, by section, in the order in which they are printed. The keys of [model] depend on
/// model.name. Their values point into `recipe`, which must outlive them.
std::vector<Field> fields(Recipe& recipe);

}  // namespace armillary::train
