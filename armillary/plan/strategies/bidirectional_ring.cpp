// Bidirectional ring: K, V walk both ways at once, half of the ring each way. A grid of one column.
#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {

StrategyDefinition bidirectional_ring() {
  return grid_strategy(
      {.name = "bidirectional_ring",
       .keys = {},
       .summary = "K,V walk both ways at once: half the steps of ring, the same bytes",
       .paper = "a folklore variant of Liu et al. 2023, arXiv:2310.01889",
       .bytes = "as ring, in P/2 steps",
       .differs =
           "Ring attention uses one direction of every link; here each tile goes P/2 ranks "
           "one way and the rest the other. Sums of dK, dV walk behind the tiles and go home "
           "from both sides."},
      [](const Problem& problem, const Strategy&) {
        return PassGrids({.rq = problem.world, .column = Movement::Bidirectional});
      });
}

}  // namespace armillary::plan
