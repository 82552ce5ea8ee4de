// TokenRing: Q walks a ring while partial results return directly to the owner of the queries. A
// grid of one row. Between nodes a second axis moves K, V (Q with inner=ring), and one axis is
// nested inside the other.
#include <utility>

#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {

StrategyDefinition tokenring() {
  return grid_strategy<TokenringOptions>(
      {.name = "tokenring",
       .keys = {number_key("nodes", "M", &TokenringOptions::nodes),
                choice_key("inner", &TokenringOptions::ring_inside,
                           {{"tokenring", false}, {"ring", true}}),
                choice_key("tiles", &TokenringOptions::tiles_stay,
                           {{"walk", false}, {"stay", true}})},
       .summary = "Q walks a ring, (out, lse) go straight back; K,V ring between M nodes",
       .paper = "TokenRing, arXiv:2412.20501, sections 3.2 and 3.3",
       .bytes = "(2 + eps) Dq N (1 - 1/P) forward, (3 + 4/d) Dq N (1 - 1/P) backward",
       .differs =
           "The backward pass is ours: Q, dOut, Lse, Delta walk, dQ goes straight back, K, V, "
           "dK, dV stay. Queries go only to ranks that have keys for them, under any mask "
           "and layout. K, V for the next round inside the nodes travel during a whole one. Q goes "
           "round in each round and each (out, lse) leaves one step after its attend, also while "
           "K, V travel. tiles=stay sends less, where the paper sends M times the bytes inside "
           "the nodes: a rank keeps the queries of its node and sums (out, lse) over the rounds, "
           "and each leaves one step after its last keys, in the last round; backward always does "
           "that. inner=ring is the other nesting: K, V walk a ring in each node, and Q goes to "
           "the next node after each round.",
       .shortens_rings = true},
      [](const Problem& problem, const TokenringOptions& options) {
        const int nodes = options.nodes;
        require_divides_world(problem, {"tokenring", "nodes", nodes});
        // K, V move between nodes and Q inside a node, or the other way round with inner=ring.
        Grid backward{.rq = nodes,
                      .rk = problem.world / nodes,
                      .row = Movement::Ring,
                      .order = GridOrder::RowsInside};
        if (options.ring_inside) {
          std::swap(backward.rq, backward.rk);
          backward.nesting = {GridAxis::Heads, GridAxis::Queries, GridAxis::Keys};
          backward.order = GridOrder::ColumnsInside;
        }
        // As in the paper, the inner axis sends its tiles in every round, in forward only.
        Grid forward = backward;
        forward.resend_each_round = !options.tiles_stay;
        return PassGrids(forward, {backward});
      },
      [](const Problem& problem) {
        std::vector<TokenringOptions> variants(1);
        for (const int m : inner_divisors(problem.world)) {
          variants.push_back({.nodes = m});
          variants.push_back({.nodes = m, .ring_inside = true});
          variants.push_back({.nodes = m, .tiles_stay = true});
        }
        return variants;
      });
}

}  // namespace armillary::plan
