// same_recipe.h: compares the recipes and the parameters of all ranks before a run begins.
#pragma once

#include <string>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/train/parameter_store.h"
#include "armillary/train/recipe.h"

namespace armillary::train {

/// Returns if all ranks have the same settings(), the same version of this library and the same
/// lines `more`, which are other choices that ranks must share, as "key = value". Collective.
/// @throws InvalidArgument on every rank, with the first line that differs as both ranks have it;
/// CommError as the communicator. Cost: one broadcast of some 2 KiB and one all_gather.
void expect_same_recipe(comm::Communicator& comm, const Recipe& recipe,
                        const std::vector<std::string>& more = {});

/// Returns if all ranks hold the same parameters, bit for bit: replicas that begin apart never
/// meet. Collective. @throws InvalidArgument on every rank that names the first rank that differs
/// from rank 0. Cost: one pass over the parameters and one all_gather of 16 bytes a rank.
void expect_same_parameters(comm::Communicator& comm, const ParameterStore& store);

}  // namespace armillary::train
