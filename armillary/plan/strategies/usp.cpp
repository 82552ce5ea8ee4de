// USP, unified sequence parallelism: Ulysses over u ranks, a ring over the world / u groups. A grid
// with u ways over heads and one column.
#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {

StrategyDefinition usp() {
  return grid_strategy<UspOptions>(
      {.name = "usp",
       .keys = {number_key("u", "U", &UspOptions::u, kRequired),
                choice_key("inner", &UspOptions::inner,
                           {{"ulysses", UspInner::Ulysses}, {"ring", UspInner::Ring}}),
                packing_key<UspOptions>(), backward_key<UspOptions>()},
       .summary = "ulysses over u neighbours, ring over world / u groups, or the reverse",
       .paper = "Fang and Zhao 2024, arXiv:2405.07719, section 3",
       .bytes = "2 Dq N/P (1 - 1/u) + 2 max(Dk/u, d) N (1 - 1/P) forward",
       .differs =
           "Any u that divides the world and does not exceed the query heads, also above the "
           "KV heads. Load balance is the layout's (zigzag over all ranks is balanced for "
           "every u), not the strategy's. inner=ring puts the ring on neighbouring ranks. "
           "qkv as of ulysses, backward as of ring.",
       .shortens_rings = true},
      [](const Problem& problem, const UspOptions& options) {
        const int u = options.u;
        require_divides_world(problem, {"usp", "u", u});
        require_heads(problem, u, {"usp", options});
        Grid grid{.u = u, .rq = problem.world / u, .packed = options.packed};
        if (options.inner == UspInner::Ring) {
          grid.nesting = {GridAxis::Queries, GridAxis::Keys, GridAxis::Heads};
        }
        return with_sides(grid, options.backward);
      },
      [](const Problem& problem) {
        std::vector<UspOptions> variants;
        for (const int u : inner_divisors(problem.world)) {
          variants.push_back({.u = u});
          variants.push_back({.u = u, .inner = UspInner::Ring});
        }
        return variants;
      });
}

}  // namespace armillary::plan
