// rank.h: the rank that a test of this program has started.
#pragma once

#include "armillary/comm/c10d.h"

namespace armillary {

/// Every strategy and a sample of problems on a GPU must equal one-device attention on the CPU.
/// Prints what errs, and how many problems there were; returns the exit code of the process.
int run_gpu_rank(const comm::C10dRendezvous& place);

}  // namespace armillary
