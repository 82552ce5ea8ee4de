// matmul_peak.h: the rate that `mfu` is measured against.
#pragma once

#include <c10/core/ScalarType.h>

#include "armillary/comm/communicator.h"

namespace armillary::train {

/// Floating point operations per second that one rank reaches in matrix products of this dtype, all
/// ranks multiplying at the same time (they may share cores); the mean over the ranks, the same on
/// all. Collective. Cost: a fifth of a second.
double measure_matmul_peak(comm::Communicator& comm, c10::ScalarType dtype);

}  // namespace armillary::train
