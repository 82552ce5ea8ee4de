// fold.h: ranks that behave alike in time, of which few are simulated. Internal to sim.
//
// Rank r behaves as rank r - k if moving every rank by k changes nothing: the programs are the same
// with other numbers (plan/fold.h), all of their work is the same, and the cluster looks the same.
// Then ranks 0 .. k - 1 are simulated, and each flow stands for one of every copy.
#pragma once

#include "armillary/plan/fold.h"
#include "armillary/predict/sim/topology.h"

namespace armillary::sim {

/// Ranks that behave alike: rank r as rank r % classes, with all peers shifted by the same number
/// of ranks. All ranks differ if classes is the world.
struct ShiftFold {
  int world = 1;
  int classes = 1;
  int copies() const { return world / classes; }
};

/// The fold of fewest classes. `alike` are ranks whose programs and work are alike; null: none.
/// Requires rank r on device r, and as many devices as ranks. Cost: O(world * divisors of the
/// world), and that of Topology::rotated for each divisor.
ShiftFold fold_of(int world, const plan::Fold* alike, const Topology& topology);

}  // namespace armillary::sim
