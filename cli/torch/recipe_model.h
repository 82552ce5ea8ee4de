// recipe_model.h: a recipe as the steps of described clusters are costed.
#pragma once

#include <string>

#include "armillary/predict/cost/model.h"
#include "armillary/predict/tune/advise.h"
#include "armillary/train/recipe.h"

namespace armillary::cli {

/// The cost of the recipe's model, counted by the very model that `train` would run; its devices
/// multiply bf16, whatever this machine does.
cost::ModelCost cost_on_cluster(const train::Recipe& recipe);

/// The question which mesh trains a recipe fastest, with its mask and its sequences, on a cluster
/// that is not named yet. Meshes on which a key of the recipe has no legal meaning are left out.
/// `path` is for errors. @throws InvalidArgument for a recipe that is not of bf16, in which meshes
/// are compared, or one with the optimizer's state on the host or with experts divided.
tune::AdviceQuestion mesh_question(const train::Recipe& recipe, const std::string& path);

}  // namespace armillary::cli
