// bursts.cpp: one bucket for each channel. They are filled when a flow finds them idle, not as time
// passes, so a pause costs nothing to simulate.
#include "armillary/predict/sim/bursts.h"

#include <algorithm>
#include <limits>

namespace armillary::sim {

Bursts::Bursts(const Topology& topology) {
  if (!topology.cluster().has_bursts()) return;
  for (const Channel& channel : topology.channels()) {
    const double size = topology.cluster().links[channel.rule].burst_bytes;
    buckets_.push_back({.size = size, .bytes_per_s = channel.bytes_per_s, .bytes = size});
  }
}

double Bursts::start(double now, std::span<const Crossing> route, double bytes) {
  if (buckets_.empty()) return 0;
  double narrowest = std::numeric_limits<double>::infinity();
  // One byte stays, so that every flow has an end that is an event.
  double passes = bytes - 1;
  for (const Crossing& crossing : route) {
    Bucket& bucket = buckets_[crossing.channel];
    if (bucket.flows++ == 0) {
      const double filled = bucket.bytes_per_s * (now - bucket.idle_since);
      bucket.bytes = std::min(bucket.size, bucket.bytes + filled);
    }
    if (bucket.size > 0) passes = std::min(passes, bucket.bytes);
    narrowest = std::min(narrowest, bucket.bytes_per_s);
  }
  for (const Crossing& crossing : route) {
    const Bucket& bucket = buckets_[crossing.channel];
    // The narrowest channel sets the pace: without a bucket there, wider ones save no time.
    if (bucket.size == 0 && bucket.bytes_per_s == narrowest) return 0;
  }
  for (const Crossing& crossing : route) {
    Bucket& bucket = buckets_[crossing.channel];
    if (bucket.size > 0) bucket.bytes -= passes;
  }
  return passes;
}

void Bursts::end(double now, std::span<const Crossing> route) {
  if (buckets_.empty()) return;
  for (const Crossing& crossing : route) {
    Bucket& bucket = buckets_[crossing.channel];
    if (--bucket.flows == 0) bucket.idle_since = now;
  }
}

}  // namespace armillary::sim
