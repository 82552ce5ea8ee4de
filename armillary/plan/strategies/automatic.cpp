// auto:traffic: the grid of the family that sends least, for each pass. The bytes of every cut are
// counted with the mask and layout at hand (`sent_bytes`), without making plans.
#include <algorithm>
#include <array>
#include <optional>

#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {
namespace {

/// A grid of one pass and the bytes it sends, which do not depend on its movements.
struct CountedGrid {
  std::int64_t bytes = 0;
  Grid grid;
};

/// The grids that send least, forward and backward together. Both passes have the same u, because
/// backward starts from the head groups that forward leaves; for each u the best cut of the rest is
/// found for each pass by itself. The first of equals is taken.
PassGrids least_traffic(const PlanContext& context) {
  std::optional<std::int64_t> least;
  PassGrids grids{Grid()};
  for (int u = 1; u <= std::min(context.problem.world, context.problem.heads); ++u) {
    if (context.problem.world % u != 0) continue;
    const int rest = context.problem.world / u;
    std::array<std::optional<CountedGrid>, 2> best;  // indexed by pass
    for (int rk = 1; rk <= rest; ++rk) {
      if (rest % rk != 0) continue;
      const Grid cut{.u = u, .rq = rest / rk, .rk = rk, .row = Movement::Ring};
      const Needs needs(cut, context.blocks, context.visibility);
      for (const Pass pass : {Pass::Forward, Pass::Backward}) {
        const std::int64_t bytes = sent_bytes(context.problem, context.blocks, needs, cut, pass);
        std::optional<CountedGrid>& known = best.at(static_cast<std::size_t>(pass));
        if (!known || bytes < known->bytes) known = CountedGrid{bytes, cut};
      }
    }
    const std::int64_t bytes = best[0]->bytes + best[1]->bytes;
    if (least && *least <= bytes) continue;
    least = bytes;
    grids = PassGrids(best[0]->grid, {best[1]->grid});
  }
  return grids;
}

}  // namespace

StrategyDefinition automatic() {
  return {
      .info = {.name = "auto",
               .keys = {flag_key("traffic", &AutomaticOptions::traffic)},
               .summary = "the grid that sends least, forward and backward cut each for itself",
               .paper = "ours",
               .bytes =
                   "4 d N sqrt(heads / P) for large P. Over the lower bound, forward, where P is a "
                   "power of two from 8 on, with 32/32, 32/8 or 8/1 heads: 1.112 at most with a "
                   "full mask, 1.53 with a causal one and zigzag, if sums travel in the input "
                   "dtype (--transfer-dtype input); in fp32 1.22 with a full mask. armillary plan "
                   "--compare "
                   "says it for the mask at hand. A prime P leaves only P x 1 x 1 and its like",
               .differs = "Counts the bytes of every u x Rq x Rk, with this mask and layout, "
                          "and takes the least of forward and backward together.",
               .shortens_rings = true},
      .check = [](const Problem&, const Strategy&) {},
      .schedule = [](const PlanContext& context,
                     const Strategy&) { return grid_schedule(context, least_traffic(context)); },
      .variants = erased<AutomaticOptions>(
          [](const Problem&) { return std::vector<AutomaticOptions>{{.traffic = true}}; })};
}

}  // namespace armillary::plan
