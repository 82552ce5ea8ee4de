// All-gather attention: every rank gathers K, V once, then attends without waiting again.
//
// Paper: Llama 3 (Meta 2024, arXiv:2407.21783, section 3.3.2).
// Steps: 2.  Received per rank: as ring.  Buffers: K, V of the other P - 1 ranks; in backward their
// dK, dV too. Differs from the paper: a rank receives only blocks that its queries see; attention
// to its own keys overlaps the gather; all heads at once.
#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {

Preset allgather_preset() {
  return {.info = {.name = "allgather",
                   .keys = {},
                   .summary = "K,V gathered at once; dK,dV reduce-scattered; queries stay",
                   .paper = "Llama 3, Meta 2024, arXiv:2407.21783, section 3.3.2"},
          .grid = [](const Problem& problem, const Strategy&) {
            return Grid{.rq = problem.world, .column = Movement::Gather};
          }};
}

}  // namespace armillary::plan
