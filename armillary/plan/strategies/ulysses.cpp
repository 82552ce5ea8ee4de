// DeepSpeed-Ulysses: an all-to-all trades tokens for heads, every rank attends to the whole
// sequence with its share of the heads, and another all-to-all trades back.
//
// Paper: Jacobs et al. 2023, arXiv:2309.14509, section 3.
// Sent per rank: (2 heads + 2 kv_heads) d N / P (1 - 1/P) elements forward, the same backward.
// Differs from the paper: heads need not divide by P (sizes of head groups differ by one), KV heads
// that several groups read are sent to each of them; refused only when P exceeds the query heads.
#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {

Preset ulysses_preset() {
  return {.info = {.name = "ulysses",
                   .keys = {},
                   .summary = "all-to-all: heads for tokens and back; world <= heads",
                   .paper = "Jacobs et al. 2023, arXiv:2309.14509, section 3"},
          .grid = [](const Problem& problem, const Strategy& strategy) {
            require_heads(problem, problem.world, strategy);
            return Grid{.u = problem.world};
          }};
}

}  // namespace armillary::plan
