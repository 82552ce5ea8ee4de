// topology.h: the links of a cluster as a graph, and the way of a message through it.
//
//   Cluster::links --expand--> vertices (devices, switches), channels (links, one direction each)
//   Topology::route(a, b)      fewest channels; of equals the one with the widest bottleneck
//
// Devices do not forward messages of others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "armillary/predict/sim/cluster.h"

namespace armillary::sim {

/// One direction of a link, or both directions of a half-duplex link.
struct Channel {
  std::string name;  ///< `n0.d3>nvswitch0`
  int rule = 0;      ///< Index into Cluster::links.
  double bytes_per_s = 0;
  bool operator==(const Channel&) const = default;
};

/// The way of a message from one device to another.
struct MessageRoute {
  std::vector<int> channels;  ///< Indices into Topology::channels, in order.
  double latency_s = 0;       ///< Sum over the channels.
  double flow_bytes_per_s = kNoCap;
  std::vector<int> limited_by;  ///< Rules of the way whose limit depends on the message's size.
};

/// Immutable but for routes, which are found when they are first asked for: not for several threads
/// at once.
class Topology {
 public:
  /// Expands the links of the first `devices` devices.
  /// @throws InvalidArgument for more devices than the cluster has, or if two of them are not
  /// connected (names both).
  Topology(const Cluster& cluster, int devices);
  ~Topology();
  Topology(Topology&&) noexcept;
  Topology& operator=(Topology&&) noexcept;

  const Cluster& cluster() const { return cluster_; }
  int devices() const { return devices_; }
  int node_of(int device) const { return device / cluster_.devices_per_node; }
  const std::vector<Channel>& channels() const;

  /// Requires from != to, both below devices(). The reference is valid as long as the topology.
  const MessageRoute& route(int from, int to) const;
  /// Largest rate of one flow of so many bytes on a route.
  double flow_limit(const MessageRoute& route, double bytes) const;

  /// The channel that takes the place of each when every device d is replaced by d + shift, modulo
  /// devices(). Empty if the links or the routes do not look the same afterwards, or if two routes
  /// of one pair are equally good, so that nobody can tell. Cost: O(links + shift * devices).
  std::vector<int> rotated(int shift) const;

 private:
  struct Graph;
  Cluster cluster_;
  int devices_;
  std::unique_ptr<Graph> graph_;
};

}  // namespace armillary::sim
