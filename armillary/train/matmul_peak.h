// matmul_peak.h: the measured peak rate that `mfu` is a share of.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "armillary/comm/communicator.h"

namespace armillary::train {

/// Floating point operations per second of one rank in matrix products of this dtype, measured
/// while all ranks multiply, for they may share cores. The mean over the ranks, the same number on
/// all of them. Collective. Cost: 0.1 s, and two matrices of 512 x 512.
double measure_matmul_peak(comm::Communicator& comm, c10::ScalarType dtype);

/// Percent of the peak that a rate is. Nothing for a rate above the peak, which then is none: other
/// work ran while it was measured.
std::optional<double> percent_of_peak(double flops_per_s, double peak_flops_per_s);

}  // namespace armillary::train
