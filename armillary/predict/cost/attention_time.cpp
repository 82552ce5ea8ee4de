#include "armillary/predict/cost/attention_time.h"

#include <algorithm>

namespace armillary::cost {

AttentionTime attention_time(const std::vector<sim::Timeline>& passes) {
  AttentionTime time;
  double link_s = 0;
  for (const sim::Timeline& pass : passes) {
    (&pass == &passes.front() ? time.forward : time.backward) += pass.end_s;
    double busiest = 0;
    for (const sim::ChannelUse& channel : pass.channels) {
      busiest = std::max(busiest, channel.busy_share);
    }
    link_s += busiest * pass.end_s;
    for (const sim::RankTimeline& rank : pass.ranks) {
      time.exposed += rank.exposed_s / static_cast<double>(pass.ranks.size());
    }
  }
  // A link that passes bytes at once (LinkRule::burst_bytes) has a share above 1.
  if (time.total() > 0) time.link_share = std::min(1.0, link_s / time.total());
  return time;
}

}  // namespace armillary::cost
