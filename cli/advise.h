// advise.h: the verb `advise`, whose MODEL may be a recipe, which libtorch reads:
// torch/recipe_model.cpp gives it the function that does.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/predict/cost/model.h"

namespace armillary::cli {

/// The cost of the model of a recipe, after settings as those of `train`.
using RecipeModel = cost::ModelCost (*)(const std::string& path,
                                        const std::vector<std::string>& settings);

/// Whether MODEL names a recipe.
bool is_recipe(std::string_view model);

/// Adds the verb. `model_of` is null in a program without libtorch.
void add_advise_with(CLI::App& app, int& exit_code, RecipeModel model_of);

}  // namespace armillary::cli
