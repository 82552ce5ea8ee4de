// overlap.h: how long a training step takes whose gathers and sums go beside compute: a closed form
// of the programs of plan/step, equal to their simulation (step_timeline.h) within 2 %.
//
//   rows of stage 3, backward     run of unit i  |  gather of unit i - 1  |  sum of unit i + 1
//
// A row lasts as long as its run, or as its messages if these take longer: those of the run (of
// attention and of tensor parallelism), the gather and the sum share one link. The messages of the
// run go first. Values of the last layer stay over the head, those of the first from one microbatch
// to the next. Sums of stages 0 and 1 may stay behind for several rows, those of stages 2 and 3 end
// with theirs, the last of a microbatch with the next forward. In stage 0 a gather of the sum
// follows each. All waits for sums along tp.
#pragma once

#include <span>

namespace armillary::cost {

/// Seconds of one unit on a rank, for one microbatch; each as if it were alone.
struct UnitTime {
  double forward = 0;   ///< Its run, with messages of attention and of tensor parallelism.
  double backward = 0;  ///< Likewise, with what recomputation repeats.
  /// Seconds of these for which the messages of the run fill the link of gathers and sums.
  double forward_link = 0;
  double backward_link = 0;
  double gather = 0;    ///< Its values, from all replicas.
  double sum = 0;       ///< Its gradients: a reduce-scatter; the gather of a sum takes as long.
  double along_tp = 0;  ///< An all-reduce of gradients that ranks along tp share.
  double update = 0;
};

struct Overlapped {
  double end = 0;          ///< Seconds of the step.
  double collectives = 0;  ///< Seconds of all gathers and sums, alone.
};

/// A step of units in the order of forward. Parameters are freed after forward in stage 3
/// (reshard_after_forward). Requires units and at least 1 microbatch. Cost: O(runs).
Overlapped overlapped(std::span<const UnitTime> units, int microbatches, int zero);

}  // namespace armillary::cost
