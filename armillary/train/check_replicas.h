// check_replicas.h: whether ranks that hold the same parameters still do: a bit that flipped on one
// of them would spread from step to step without a word.
#pragma once

#include <cstdint>

#include "armillary/train/store.h"

namespace armillary::train {

/// Returns if all ranks that hold a value hold the same one after `step`. Collective over the
/// replicas and the ranks along tp. @throws InvalidArgument on all of them, with the parameter and
/// the first rank that differs from rank 0. Cost: one pass over the values, and an all_gather of 16
/// bytes a value.
void expect_equal_replicas(const Replicas& replicas, const Store& store, std::int64_t step);

}  // namespace armillary::train
