// simulated_step.h: the training step of a run as `armillary simulate RECIPE` has it, for the page
// of the run.
#pragma once

#include "armillary/lab/report/run_page.h"
#include "armillary/train/recipe.h"

namespace armillary::cli {

/// The step of a recipe on the cluster that metrics.cluster names. @throws InvalidArgument for a
/// recipe whose steps are not costed (recipe_model.h), or that does not fit the cluster; as
/// sim::load_cluster.
report::SimulatedStep simulated_step(const train::Recipe& recipe);

}  // namespace armillary::cli
