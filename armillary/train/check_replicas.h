// check_replicas.h: whether ranks that hold the same parameters still do: a bit that flipped on one
// of them would spread from step to step without a word.
#pragma once

#include <cstdint>

#include "armillary/comm/communicator.h"
#include "armillary/comm/mesh.h"
#include "armillary/train/store.h"

namespace armillary::train {

/// Returns if all ranks that hold a value hold the same one after `step`: over the replicas,
/// experts over theirs, and along tp. Collective over `world`, the ranks of the mesh, of which
/// `replicas` are groups.
/// @throws InvalidArgument on all of them with one text: the parameter, the first rank of `world`
/// that differs, and the first rank of its group, from which it does. Cost: one pass over the
/// values, and all_gathers of 24 bytes a value.
void expect_equal_replicas(comm::Communicator& world, const Replicas& replicas, const Store& store,
                           std::int64_t step);

/// The same before the first step, for the values that stores were given (Store::digest), without
/// the name of the parameter: replicas that begin apart never meet. Collective over the mesh. Cost:
/// all_gathers of 24 bytes a rank.
void expect_equal_start(const comm::Mesh& mesh, const Store& store);

}  // namespace armillary::train
