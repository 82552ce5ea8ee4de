// Double ring: K, V walk rings of `window` neighbouring ranks inside a ring of windows. A grid of
// one column; Route knows the movement (movement.h).
#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {

StrategyDefinition double_ring() {
  return grid_strategy<DoubleRingOptions>(
      {.name = "double_ring",
       .keys = {number_key("window", "W", &DoubleRingOptions::window, kRequired)},
       .summary = "K,V walk rings of W neighbours inside a ring of windows",
       .paper = "LoongTrain, arXiv:2406.18485; BurstEngine, arXiv:2509.19836",
       .bytes = "as ring; only 1 hop in W leaves the window",
       .differs = "The hop to the next window is sent W steps before it is needed, so that slow "
                  "links have a whole inner ring of time. Sums of dK, dV visit ranks in the same "
                  "order. Past ranks that need nothing of a block its owner sends it on, "
                  "so a window mask moves its halo as on ring, not twice at the ends of windows. "
                  "Any W that divides the world."},
      [](const Problem& problem, const DoubleRingOptions& options) {
        const int window = options.window;
        require_divides_world(problem, {"double_ring", "window", window});
        return PassGrids({.rq = problem.world, .column = Movement::DoubleRing, .window = window});
      },
      [](const Problem& problem) {
        std::vector<DoubleRingOptions> variants;
        for (const int window : inner_divisors(problem.world)) variants.push_back({window});
        return variants;
      });
}

}  // namespace armillary::plan
