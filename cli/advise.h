// advise.h: the verb `advise`, whose MODEL may be a recipe, which libtorch reads:
// torch/recipe_model.cpp gives it the function that does.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/predict/tune/advise.h"

namespace armillary::cli {

/// The question of a recipe, after settings as those of `train`, with the sequences of `sizes`.
using RecipeQuestion = tune::AdviceQuestion (*)(const std::string& path,
                                                const std::vector<std::string>& settings,
                                                const cost::Step& sizes);

/// Whether MODEL names a recipe.
bool is_recipe(std::string_view model);

/// Adds the verb. `question_of` is null in a program without libtorch.
void add_advise_with(CLI::App& app, int& exit_code, RecipeQuestion question_of);

}  // namespace armillary::cli
