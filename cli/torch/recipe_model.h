// recipe_model.h: the model of a recipe as the steps of described clusters are costed.
#pragma once

#include <string>

#include "armillary/predict/cost/model.h"
#include "armillary/train/recipe.h"

namespace armillary::cli {

/// Counted by the very model that `train` would run; its devices multiply bf16, whatever this
/// machine does. `path` is for errors. @throws InvalidArgument for a recipe that is not of bf16, in
/// which steps are costed.
cost::ModelCost cost_on_cluster(const train::Recipe& recipe, const std::string& path);

/// The same for a search of a mesh, which has the optimizer's state on devices. @throws
/// InvalidArgument also for a recipe that has it on the host.
cost::ModelCost cost_of_meshes(const train::Recipe& recipe, const std::string& path);

}  // namespace armillary::cli
