// The rate of a flow is constant between two of its changes, so its bytes in a part of the time are
// sums of rectangles.
#include "armillary/lab/report/channel_load.h"

#include <algorithm>

namespace armillary::report {
namespace {

/// Adds bytes that flow from `begin_s` to `end_s` at a constant rate to the parts of the time.
void add_bytes(std::vector<double>& parts, double part_s, const sim::OpTime& time, double rate) {
  // The end of the pass belongs to the last part, whatever the rounding of its border.
  const int last = static_cast<int>(parts.size()) - 1;
  const int first_part = std::min(last, static_cast<int>(time.start_s / part_s));
  const int last_part = std::min(last, static_cast<int>(time.end_s / part_s));
  for (int p = first_part; p <= last_part; ++p) {
    const double begin = std::max(time.start_s, p * part_s);
    const double end = p == last ? time.end_s : std::min(time.end_s, (p + 1) * part_s);
    if (end > begin) parts[p] += (end - begin) * rate;
  }
}

}  // namespace

std::vector<ChannelLoad> channel_loads(const sim::Timeline& timeline, sim::Topology& topology,
                                       int parts) {
  const std::vector<sim::Channel>& channels = topology.channels();
  std::vector<ChannelLoad> loads(channels.size());
  if (timeline.end_s <= 0) return {};
  const double part_s = timeline.end_s / parts;
  for (const sim::Flow& flow : timeline.flows) {
    // The bytes of this flow over time, the same on every channel of its way.
    std::vector<double> bytes(parts, 0);
    for (std::size_t i = 0; i < flow.rates.size(); ++i) {
      const double end = i + 1 < flow.rates.size() ? flow.rates[i + 1].time_s : flow.end_s;
      add_bytes(bytes, part_s, {flow.rates[i].time_s, end}, flow.rates[i].bytes_per_s);
    }
    bytes[std::min(parts - 1, static_cast<int>(flow.start_s / part_s))] += flow.passed_bytes;
    for (const int c : topology.route(flow.from, flow.to).channels) {
      ChannelLoad& load = loads[c];
      load.share.resize(parts);
      load.bytes += static_cast<double>(flow.bytes);
      for (int p = 0; p < parts; ++p) load.share[p] += bytes[p];
    }
  }
  for (std::size_t c = 0; c < loads.size(); ++c) {
    loads[c].name = channels[c].name;
    loads[c].bytes_per_s = channels[c].bytes_per_s;
    for (double& share : loads[c].share) share /= part_s * channels[c].bytes_per_s;
  }
  // Channels without a flow are no part of the picture.
  std::erase_if(loads, [](const ChannelLoad& load) { return load.share.empty(); });
  return loads;
}

}  // namespace armillary::report
