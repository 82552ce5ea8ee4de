// Attention2D: queries travel along the rows of a grid of ranks, keys along its columns. A grid
// with K, V transposed first. Without overlap both sides are gathered and attended in one kernel
// call; with overlap both walk rings, rows after columns.
#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {

StrategyDefinition attention2d() {
  return grid_strategy<Attention2dOptions>(
      {.name = "attention2d",
       .keys = {number_key("rows", "R", &Attention2dOptions::rows, kRequired),
                choice_key("overlap", &Attention2dOptions::overlap,
                           {{"true", true}, {"false", false}})},
       .summary = "R x P/R grid: Q gathered on rows, K,V on columns, partials reduce-scattered",
       .paper = "Attention2D, arXiv:2503.15758, sections 3.2 (NO) and 3.4 (O)",
       .bytes = "(2 + eps) Dq (C - 1) N/P + 2 Dk N (1/C - 1/P) + 2 Dk N/P of transposing, C = P/R",
       .differs =
           "Any rectangle. K, V are transposed as the paper's column-major layout needs "
           "(with striped:1 every local causal mask is a triangle); `grid` is the same "
           "without it. Backward finds K, V where forward left them and sends only dK, dV "
           "back. Out and lse travel instead of numerator, denominator and maximum. Without "
           "overlap: gathers, one kernel call, reduce-scatter. overlap=true: K, V ring while "
           "own queries compute, then Q ring and partials in a ring reduce-scatter; each block of "
           "queries meets the gathered keys in one call. Tiles go to the next row and column, not "
           "to the one before.",
       .shortens_rings = true},
      [](const Problem& problem, const Attention2dOptions& options) {
        const int rows = options.rows;
        require_divides_world(problem, {"attention2d", "rows", rows});
        Grid grid{.rq = rows,
                  .rk = problem.world / rows,
                  .column = Movement::Gather,
                  .nesting = {GridAxis::Heads, GridAxis::Queries, GridAxis::Keys},
                  .transposed = true,
                  .one_call = true};
        if (options.overlap) {
          grid.column = grid.row = grid.home = Movement::Ring;
          grid.order = GridOrder::RowsLast;
          grid.one_call = false;
        }
        return PassGrids(grid);
      },
      [](const Problem& problem) {
        std::vector<Attention2dOptions> variants;
        for (const int rows : inner_divisors(problem.world)) {
          variants.push_back({.rows = rows});
          variants.push_back({.rows = rows, .overlap = true});
        }
        return variants;
      });
}

}  // namespace armillary::plan
