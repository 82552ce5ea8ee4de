// USP, unified sequence parallelism: Ulysses over u neighbouring ranks, ring over the world / u
// groups.
//
// Paper: Fang and Zhao 2024, arXiv:2405.07719, section 3, Algorithm 1.
// Sent per rank: Q and Out (1 - 1/u), K and V as a ring of world / u over one head group.
// Differs from the paper: any u that divides the world and does not exceed the query heads; load
// balance is the layout's (zigzag over all ranks is balanced for every u), not the strategy's.
#include "armillary/core/checked.h"
#include "armillary/core/error.h"
#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {

Preset usp_preset() {
  return {.info = {.name = "usp",
                   .keys = {"u"},
                   .summary = "ulysses over u neighbours, ring over world / u groups",
                   .paper = "Fang and Zhao 2024, arXiv:2405.07719, section 3"},
          .grid = [](const Problem& problem, const Strategy& strategy) {
            const int u = positive_key(strategy, "u");
            if (problem.world % u != 0) {
              fail<InvalidArgument>("usp: u={} with world {}; u must divide world; nearest: u={}",
                                    u, problem.world, nearest_divisor(problem.world, u));
            }
            require_heads(problem, u, strategy);
            return Grid{.u = u, .rq = problem.world / u};
          }};
}

}  // namespace armillary::plan
