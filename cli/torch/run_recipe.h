// run_recipe.h: the recipe of verbs that read the parameters of a run: of its newest checkpoint, of
// a checkpoint, or of none, where a recipe is named.
#pragma once

#include <string>
#include <vector>

#include "armillary/train/recipe.h"

namespace armillary::cli {

struct RunRecipe {
  train::Recipe recipe;    ///< With the settings.
  std::string checkpoint;  ///< Its folder; empty for a recipe.
};

/// `run`: the folder of a run, a checkpoint, or a recipe (TOML). Errors begin with `verb`.
/// @throws InvalidArgument as checkpoint_of, load_recipe and apply_setting, or for settings that
/// would make another model of the checkpoint's parameters; IoError.
RunRecipe recipe_of_run(const std::string& verb, const std::string& run,
                        const std::vector<std::string>& settings);

}  // namespace armillary::cli
