// Bandwidths of collectives are max-min fair rates of one flow per rank, all groups at once.
#include "armillary/predict/cost/group.h"

#include <algorithm>
#include <vector>

#include "armillary/predict/sim/flow_network.h"
#include "armillary/predict/sim/topology.h"

namespace armillary::cost {
namespace {

/// Least rate of flows that go from each of the first devices to the one `distance` further.
double shared_rate(const sim::Topology& topology, int senders, int distance) {
  std::vector<double> capacities;
  for (const sim::Channel& channel : topology.channels()) capacities.push_back(channel.bytes_per_s);
  sim::FlowNetwork network(capacities);
  std::vector<std::vector<sim::Crossing>> routes(senders);  // must outlive their flows
  std::vector<int> flows;
  for (int d = 0; d < senders; ++d) {
    const sim::MessageRoute& route = topology.route(d, d + distance);
    for (const int channel : route.channels) routes[d].push_back({.channel = channel});
    flows.push_back(network.start(0, routes[d], route.flow_bytes_per_s, 1));
  }
  network.settle(0);
  double least = std::numeric_limits<double>::infinity();
  for (const int flow : flows) least = std::min(least, network.rate(flow));
  return least;
}

/// Two nodes of a cluster, or the one that there is.
sim::Topology two_nodes(const sim::Cluster& cluster) {
  return {cluster, std::min(cluster.devices(), 2 * cluster.devices_per_node)};
}

bool crosses_nodes(const sim::Cluster& cluster, int members, int stride) {
  return members > 1 && members * stride > cluster.devices_per_node;
}

/// The rate of a group of two members or more (group.h).
double ring_rate(const sim::Topology& topology, int members, int stride, int part_node_links) {
  const int per_node = topology.cluster().devices_per_node;
  double rate = std::numeric_limits<double>::infinity();
  if (stride < per_node) rate = shared_rate(topology, per_node - stride, stride);
  if (!crosses_nodes(topology.cluster(), members, stride)) return rate;
  int links = std::max(1, per_node / stride);
  if (stride > 1 && part_node_links > 0) links = std::min(links, part_node_links);
  return std::min(rate, links * shared_rate(topology, per_node, per_node));
}

}  // namespace

double group_bytes_per_s(const sim::Cluster& cluster, int members, int stride,
                         int part_node_links) {
  if (members == 1) return std::numeric_limits<double>::infinity();
  return ring_rate(two_nodes(cluster), members, stride, part_node_links);
}

double RankGroup::ring_seconds(double bytes) const {
  if (members == 1 || bytes == 0) return 0;
  return latency_s + bytes * (members - 1) / members / bytes_per_s;
}

RankGroup group_of(const sim::Cluster& cluster, int members, int stride, int part_node_links) {
  RankGroup group{.members = members};
  if (members == 1) return group;
  const sim::Topology topology = two_nodes(cluster);
  group.bytes_per_s = ring_rate(topology, members, stride, part_node_links);
  group.crosses_nodes = crosses_nodes(cluster, members, stride);
  // A ring leaves all of its nodes but one.
  const int per_node = cluster.devices_per_node;
  int between = 0;
  if (group.crosses_nodes) {
    between = stride >= per_node ? members - 1 : (members * stride - 1) / per_node;
  }
  const int within = members - 1 - between;
  group.latency_s = cluster.messages.latency_s;
  if (within > 0) group.latency_s += within * topology.route(0, stride).latency_s;
  if (between > 0) group.latency_s += between * topology.route(0, per_node).latency_s;
  return group;
}

}  // namespace armillary::cost
