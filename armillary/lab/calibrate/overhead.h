// overhead.h: measures what a call of attention costs beside kernels, memory and messages: the host
// of a run. For the sources of this folder.
#pragma once

#include "armillary/lab/bench/ranks.h"
#include "armillary/predict/sim/cluster.h"

namespace armillary::calibrate {

struct Overhead {
  double op_s = 0;        ///< An op of the compute lane.
  double forward_s = 0;   ///< A call, before its first op.
  double backward_s = 0;  ///< A backward pass, likewise.
};

/// By layers of a few tokens, on all ranks: one of many ops and one of few, whose messages are over
/// when they start. Times of `cluster`, which has no overhead yet, are taken off. Collective.
Overhead measure_overhead(const sim::Cluster& cluster, plan::Dtype dtype,
                          const bench::MakeRanks& make_ranks);

}  // namespace armillary::calibrate
