// Ring attention: K, V walk from rank to rank, queries stay home.
//
// Paper: Liu, Zaharia, Abbeel 2023, arXiv:2310.01889, section 3; LightSeq, zigzag and striped
// attention are this strategy under other layouts. Steps: P.  Received per rank and token of the
// sequence: (1 - 1/P) of K and V; backward again, with dK, dV in accumulator precision.  Buffers: 2
// shards of K and V, and in backward 2 of dK and dV more. Differs from the paper: sums of dK, dV
// start one rank after the owner, so that they make P - 1 hops instead of P; blocks that no further
// rank sees stop walking.
#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {

Preset ring_preset() {
  return {.info = {.name = "ring",
                   .keys = {},
                   .summary = "K,V walk a ring; queries stay (any layout: zigzag, striped)",
                   .paper = "Liu et al. 2023, arXiv:2310.01889, section 3"},
          .grid = [](const Problem& problem, const Strategy&) {
            return Grid{.rq = problem.world, .column = Movement::Ring};
          }};
}

}  // namespace armillary::plan
