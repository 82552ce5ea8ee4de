// same_recipe.h: all ranks train by one recipe, or none begins.
#pragma once

#include "armillary/comm/communicator.h"
#include "armillary/train/recipe.h"

namespace armillary::train {

/// Collective. @throws InvalidArgument on every rank, with the first line that differs of both, if
/// two ranks have other settings() or versions of this library. CommError as the communicator.
/// Cost: one broadcast of some 2 KiB and one all_gather.
void expect_same_recipe(comm::Communicator& comm, const Recipe& recipe);

}  // namespace armillary::train
