// Ring attention: K, V walk from rank to rank, and queries stay with their owner. A grid of one
// column. With backward=q the query side walks in backward instead.
#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {

StrategyDefinition ring() {
  return grid_strategy<RingOptions>(
      {.name = "ring",
       .keys = {backward_key<RingOptions>()},
       .summary = "K,V walk a ring; queries stay (any layout: zigzag, striped)",
       .paper = "Liu et al. 2023, arXiv:2310.01889, section 3",
       .bytes = "2 Dk N (1 - 1/P) forward; as much again backward, and dK, dV in accumulator "
                "precision. backward=q: (3 + 4/d) Dq N (1 - 1/P)",
       .differs = "Sums of dK, dV start one rank after the owner and make P - 1 hops instead of P. "
                  "Blocks go only to ranks that see them, past the others straight from their "
                  "owner, and sums straight home where the next rank adds nothing: a quarter less "
                  "in both passes with zigzag and a causal mask, only the halo under a window. "
                  "LightSeq, zigzag and striped attention are this strategy "
                  "under other layouts. backward=q lets Q, dOut, Lse, Delta walk instead of K, V; "
                  "cheaper takes of the two what sends less with these heads and this mask.",
       .shortens_rings = true},
      [](const Problem& problem, const RingOptions& options) {
        return with_sides({.rq = problem.world}, options.backward);
      });
}

}  // namespace armillary::plan
