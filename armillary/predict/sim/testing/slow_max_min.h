// slow_max_min.h: max-min fair rates by the definition, for tests.
#pragma once

#include <vector>

#include "armillary/predict/sim/flow_network.h"

namespace armillary::sim::testing {

struct SlowFlow {
  std::vector<Crossing> route;
  double largest = 0;
};

/// Progressive filling from scratch: all rates rise together; a flow stops at its own limit or when
/// a channel of its route is full. Cost: O(flows^2 * route).
inline std::vector<double> slow_max_min(const std::vector<double>& capacities,
                                        const std::vector<SlowFlow>& flows) {
  std::vector<double> rates(flows.size(), 0);
  std::vector<bool> stopped(flows.size(), false);
  std::vector<double> left = capacities;
  for (double level = 0;;) {
    // The next rise: the least that stops any flow.
    double rise = -1;
    const auto consider = [&](double r) { rise = rise < 0 ? r : std::min(rise, r); };
    std::vector<double> weight(capacities.size(), 0);
    for (std::size_t f = 0; f < flows.size(); ++f) {
      if (stopped[f]) continue;
      consider(flows[f].largest - level);
      for (const Crossing& crossing : flows[f].route) weight[crossing.channel] += crossing.share;
    }
    if (rise < 0) return rates;
    for (std::size_t c = 0; c < capacities.size(); ++c) {
      if (weight[c] > 0) consider(left[c] / weight[c]);
    }
    level += rise;
    for (std::size_t c = 0; c < capacities.size(); ++c) left[c] -= rise * weight[c];
    for (std::size_t f = 0; f < flows.size(); ++f) {
      if (stopped[f]) continue;
      rates[f] = level;
      bool full = level >= flows[f].largest * (1 - 1e-12);
      for (const Crossing& crossing : flows[f].route) {
        full = full || left[crossing.channel] <= capacities[crossing.channel] * 1e-12;
      }
      stopped[f] = full;
    }
  }
}

}  // namespace armillary::sim::testing
