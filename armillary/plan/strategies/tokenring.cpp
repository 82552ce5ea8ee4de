// TokenRing: Q walks a ring while partial results go straight back to the owner of the queries.
#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {

StrategyDefinition tokenring() {
  return grid_strategy(
      {.name = "tokenring",
       .keys = {{"nodes", "M"}},
       .summary = "Q walks a ring, (out, lse) go straight back; K,V ring between M nodes",
       .paper = "TokenRing, arXiv:2412.20501, sections 3.2 and 3.3",
       .bytes = "(2 + eps) Dq N (1 - 1/P) forward, (3 + 4/d) Dq N (1 - 1/P) backward",
       .differs =
           "The backward pass is ours: Q, dOut, Lse, Delta walk, dQ goes straight back, K, V, "
           "dK, dV stay. Queries go only to ranks that have keys for them, under any mask "
           "and layout, and the ring turns to the side where they pass fewer. Between nodes a rank "
           "keeps the queries of its node instead of sending "
           "them round once per K, V it meets."},
      [](const Problem& problem, const Strategy& strategy) {
        const int nodes = number(strategy, "nodes");
        require_divides_world(problem, strategy, "nodes", nodes);
        return PassGrids({.rq = nodes, .rk = problem.world / nodes, .row = Movement::Ring});
      },
      [](const Problem& problem) {
        std::vector<std::map<std::string, std::string>> variants(1);
        for (const int m : inner_divisors(problem.world)) {
          variants.push_back({{"nodes", std::to_string(m)}});
        }
        return variants;
      });
}

}  // namespace armillary::plan
