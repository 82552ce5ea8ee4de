// same_recipe.h: compares what ranks must share: recipes, parameters and data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/proof/digest.h"

namespace armillary::train {

/// Returns if all ranks have the same `lines`, choices that they must share as "key = value", such
/// as settings() of their recipe, and the same version of this library. Collective.
/// @throws InvalidArgument on every rank, with the first line that differs as both ranks have it;
/// CommError as the communicator. Cost: one broadcast of some 2 KiB and one all_gather.
void expect_same_settings(comm::Communicator& comm, std::vector<std::string> lines);

/// Returns if all ranks were given the same parameters, by their digest (store.h): replicas that
/// begin apart never meet. Collective. @throws InvalidArgument on every rank that names the first
/// rank that differs from rank 0. Cost: one all_gather of 16 bytes a rank.
void expect_same_parameters(comm::Communicator& comm, const proof::Digest& mine);

/// Returns if all ranks of `comm` read the same `what`, by its digest (SequenceParts::digest).
/// Collective. @throws InvalidArgument on every rank that names the first rank that differs from
/// rank 0. Cost: one all_gather of 8 bytes a rank.
void expect_same_data(comm::Communicator& comm, std::uint64_t mine, std::string_view what);

}  // namespace armillary::train
