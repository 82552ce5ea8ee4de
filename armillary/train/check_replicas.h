// check_replicas.h: whether ranks that hold the same parameters still do: a bit that flipped on one
// of them would spread from step to step without a word.
#pragma once

#include <cstdint>

#include "armillary/comm/communicator.h"
#include "armillary/train/store.h"

namespace armillary::train {

/// Returns if all ranks that hold a value hold the same one after `step`. Collective over `world`,
/// the ranks of the mesh, of which `replicas` are groups. @throws InvalidArgument on all of them
/// with one text: the parameter, the first rank of `world` that differs, and the first rank of its
/// group, from which it does. Cost: one pass over the values, and an all_gather of 16 bytes a
/// value.
void expect_equal_replicas(comm::Communicator& world, const Replicas& replicas, const Store& store,
                           std::int64_t step);

}  // namespace armillary::train
