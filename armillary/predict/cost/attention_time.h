// attention_time.h: attention of one layer within a step.
#pragma once

#include <vector>

#include "armillary/predict/sim/timeline.h"

namespace armillary::cost {

/// Seconds of attention of one layer, for the sequences of one microbatch.
struct AttentionTime {
  double forward = 0;
  double backward = 0;    ///< With the passes that recomputation repeats before it.
  double link_share = 0;  ///< Part of the links between its ranks that its messages fill meanwhile.
  double exposed = 0;     ///< Its messages beside no compute: mean over the ranks.
  double total() const { return forward + backward; }
};

/// The time of simulated passes in the order in which they run, forward first. The link is the
/// busiest one.
AttentionTime attention_time(const std::vector<sim::Timeline>& passes);

}  // namespace armillary::cost
