// DeepSpeed-Ulysses: an all-to-all trades tokens for heads, every rank attends to the whole
// sequence with its share of the heads, and another all-to-all trades back. A grid of u = world.
#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {

StrategyDefinition ulysses() {
  return grid_strategy<UlyssesOptions>(
      {.name = "ulysses",
       .keys = {packing_key<UlyssesOptions>()},
       .summary = "all-to-all: heads for tokens and back; world <= heads",
       .paper = "Jacobs et al. 2023, arXiv:2309.14509, section 3",
       .bytes = "(2 Dq + 2 Dk) N/P (1 - 1/P) forward, the same backward",
       .differs =
           "Heads need not divide by P: sizes of head groups differ by one. KV heads that "
           "several groups read are sent to each of them, and their gradients summed at "
           "home. Each of K, V, Q leaves when it is projected, or all three in one all-to-all "
           "(qkv=packed). Backward finds Q, K, V, Out where forward left them. Refused only "
           "when P exceeds the query heads."},
      [](const Problem& problem, const UlyssesOptions& options) {
        require_heads(problem, problem.world, {"ulysses", options});
        return PassGrids({.u = problem.world, .packed = options.packed});
      });
}

}  // namespace armillary::plan
