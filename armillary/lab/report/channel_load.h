// channel_load.h: the use of each channel over time, from the flows of a timeline. Internal to
// report.
#pragma once

#include <string>
#include <vector>

#include "armillary/predict/sim/timeline.h"
#include "armillary/predict/sim/topology.h"

namespace armillary::report {

/// One channel that moved bytes. Channels that carried nothing have no load.
struct ChannelLoad {
  std::string name;        ///< As in the topology: `n0.d3>nvswitch0`.
  double bytes_per_s = 0;  ///< Its capacity.
  double bytes = 0;        ///< In the whole pass.
  /// Share of the capacity that is used, in equal parts of the time up to the end of the pass.
  std::vector<double> share;
};

/// Loads in the order of the topology.
/// Requires a timeline with TimelineParts::flows. Cost: O(flows * (rates + parts) * channels of a
/// route).
std::vector<ChannelLoad> channel_loads(const sim::Timeline& timeline, sim::Topology& topology,
                                       int parts);

}  // namespace armillary::report
