// kernels.h: measures the speed of attention on one block, on all ranks at once. For the sources of
// this folder.
#pragma once

#include <vector>

#include "armillary/lab/bench/ranks.h"
#include "armillary/predict/sim/curves.h"

namespace armillary::calibrate {

/// The curves of one dtype and head dim.
struct CurveCase {
  plan::Dtype dtype = plan::Dtype::F32;
  int head_dim = 64;
  int heads = 4;
  std::int64_t least_tokens = 32;   ///< Sizes go from here by factors of two ..
  std::int64_t most_tokens = 4096;  ///< .. up to here.
};

/// Curves by points: forward and backward, full and causal. Every rank calls a kernel of its own at
/// the same time, so that ranks share caches, memory and the clock of the cores as they do in a
/// run. Collective over the ranks.
std::vector<sim::KernelCurve> measure_kernels(const CurveCase& spec, bench::Ranks& ranks,
                                              int world);

/// Bytes/s at which accumulators are read by calls that add to them, beyond the same calls that
/// only write them; 0 if that takes no time that can be measured.
double measure_carry(const CurveCase& spec, bench::Ranks& ranks, int world);

}  // namespace armillary::calibrate
