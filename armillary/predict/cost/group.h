// group.h: ranks that do collectives together, on a described cluster.
#pragma once

#include <limits>

#include "armillary/predict/sim/cluster.h"

namespace armillary::cost {

/// Bandwidth of ring collectives in groups of `members` devices that are `stride` apart, while all
/// such groups of the cluster work at once: that of the link within a node, or of all network links
/// that the members of one node have together, if less; with `part_node_links` (StepRates), of at
/// most so many of them.
double group_bytes_per_s(const sim::Cluster& cluster, int members, int stride,
                         int part_node_links = 0);

/// A group as numbers.
struct RankGroup {
  int members = 1;
  double bytes_per_s = std::numeric_limits<double>::infinity();
  double latency_s = 0;  ///< A collective's: software once, links in each of members - 1 steps.
  bool crosses_nodes = false;

  /// Seconds of an all-gather or a reduce-scatter of a buffer; 0 for no bytes or one member.
  double ring_seconds(double bytes) const;
  /// Whether both groups use links between nodes, or both only those within.
  bool shares_links(const RankGroup& other) const {
    return members > 1 && other.members > 1 && crosses_nodes == other.crosses_nodes;
  }
};

/// Members are `stride` devices apart. Requires that they are devices of the cluster.
RankGroup group_of(const sim::Cluster& cluster, int members, int stride, int part_node_links = 0);

}  // namespace armillary::cost
