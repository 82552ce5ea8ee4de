// auto:traffic: the grid of the family that sends least, for each pass.
#include <algorithm>
#include <optional>

#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {
namespace {

struct Best {
  std::int64_t bytes = 0;
  Grid grid;
};

/// The cut of world / u into rows and columns that sends least in a pass.
Best best_cut(const PlanContext& context, int u, Pass pass) {
  std::optional<Best> best;
  const int rest = context.problem.world / u;
  for (int rk = 1; rk <= rest; ++rk) {
    if (rest % rk != 0) continue;
    Grid grid{.u = u, .rq = rest / rk, .rk = rk};
    const Needs needs(grid, context.blocks, context.areas);
    // A gather never moves more than a ring, but holds more: it must move less to be taken.
    for (const Movement column : {Movement::Ring, Movement::RingBack, Movement::Gather}) {
      for (const Movement row : {Movement::Ring, Movement::Gather}) {
        grid.column = column;
        grid.row = row;
        const std::int64_t bytes = sent_bytes(context.problem, context.blocks, needs, grid, pass);
        if (!best || bytes < best->bytes) best = Best{bytes, grid};
      }
    }
  }
  return *best;
}

/// Forward and backward share u: backward starts from the head groups that forward leaves.
PassGrids least_traffic(const PlanContext& context) {
  std::optional<std::int64_t> least;
  PassGrids grids{Grid()};
  for (int u = 1; u <= std::min(context.problem.world, context.problem.heads); ++u) {
    if (context.problem.world % u != 0) continue;
    const Best forward = best_cut(context, u, Pass::Forward);
    const Best backward = best_cut(context, u, Pass::Backward);
    const std::int64_t bytes = forward.bytes + backward.bytes;
    if (least && *least <= bytes) continue;
    least = bytes;
    grids = PassGrids(forward.grid, backward.grid);
  }
  return grids;
}

}  // namespace

StrategyDefinition automatic() {
  return {
      .info = {.name = "auto",
               .keys = {{"traffic", "", true}},
               .summary = "the grid that sends least, forward and backward cut each for itself",
               .paper = "ours",
               .bytes = "4 d N sqrt(heads / P) for large P: within 1.11 of the lower bound",
               .differs = "Counts the bytes of every u x Rq x Rk, with this mask and layout, "
                          "and takes the least of forward and backward together."},
      .check = [](const Problem&, const Strategy&) {},
      .schedule = [](const PlanContext& context,
                     const Strategy&) { return grid_schedule(context, least_traffic(context)); },
      .variants =
          [](const Problem&) {
            return std::vector<std::map<std::string, std::string>>{{{"traffic", ""}}};
          }};
}

}  // namespace armillary::plan
