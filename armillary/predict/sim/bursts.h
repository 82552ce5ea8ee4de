// bursts.h: bytes that links pass at once after a pause, as token buckets do. Internal to sim.
#pragma once

#include <span>
#include <vector>

#include "armillary/predict/sim/flow_network.h"
#include "armillary/predict/sim/topology.h"

namespace armillary::sim {

/// The buckets of all channels. A bucket is full at first; the first flow after a pause takes what
/// it needs of it, and it fills again while no flow crosses the channel, at the rate of the
/// channel. Times never decrease from call to call. Ranks must not be folded: of flows that start
/// together the first takes all, so ranks are not alike.
class Bursts {
 public:
  explicit Bursts(const Topology& topology);

  /// A flow of `bytes` >= 1 starts. Returns the bytes of it that pass at once; at least one does
  /// not. None do if the narrowest channel of the route has no bucket.
  double start(double now, std::span<const Crossing> route, double bytes);
  /// The flow has ended.
  void end(double now, std::span<const Crossing> route);

 private:
  struct Bucket {
    double size = 0;
    double bytes_per_s = 0;
    double bytes = 0;  ///< When the last flow started.
    int flows = 0;
    double idle_since = 0;
  };
  std::vector<Bucket> buckets_;  ///< By channel; empty if none has a size.
};

}  // namespace armillary::sim
