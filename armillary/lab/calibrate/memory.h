// memory.h: measures ops that do not attend: they read and write memory, and compute little. For
// the sources of this folder.
#pragma once

#include <vector>

#include "armillary/lab/bench/ranks.h"
#include "armillary/predict/sim/curves.h"

namespace armillary::calibrate {

/// Bytes/s, reads plus writes as sim::WorkCounter counts them, of merge, add, copy, finish and
/// delta by the bytes that one touches, on all ranks at once. Small tiles lie in the caches, as
/// they do between two ops of a plan. Outputs and their gradients have the dtype. Collective over
/// the ranks.
std::vector<sim::MemoryCurve> measure_memory(plan::Dtype dtype, bench::Ranks& ranks, int world);

}  // namespace armillary::calibrate
