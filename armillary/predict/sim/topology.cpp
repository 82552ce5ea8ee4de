// The graph has two kinds of vertices: devices, which come first, and switches. A route between
// devices goes through switches only, so each source keeps one breadth-first tree over the
// switches, from which the routes to all destinations are read.
#include "armillary/predict/sim/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/predict/sim/link_names.h"

namespace armillary::sim {
struct Topology::Graph {
  /// One channel out of a vertex, or into it.
  struct Exit {
    int to = 0;  ///< The vertex at the other end.
    int channel = 0;
  };

  /// Shortest ways from one device to all switches.
  struct Tree {
    std::vector<int> distance;  ///< By switch; 0: not reached.
    std::vector<double> width;  ///< Capacity of the narrowest channel of the way.
    std::vector<Exit> before;   ///< The vertex before the switch, and the channel from it.
    bool ties = false;          ///< Some switch has another way that is as short and as wide.
  };

  /// One link: its two vertices, and the channels there and back; the same channel twice if it is
  /// half duplex.
  struct Link {
    int from = -1;
    int to = -1;
    int there = -1;
    int back = -1;
    Link reversed() const { return {to, from, back, there}; }
  };

  std::vector<Channel> channels;
  std::vector<std::vector<Exit>> exits;    ///< By vertex.
  std::vector<std::vector<Exit>> entries;  ///< By device: channels into it.
  /// By rule, then by d, or by d * devices_per_node + j if the rule names j: the link there.
  std::vector<std::vector<Link>> by_rule;
  std::map<std::string, int> switches;
  std::map<int, Tree> trees;
  std::unordered_map<std::int64_t, MessageRoute> routes;

  int vertex(const LinkName& name, const PlaceholderValues& place, int first_device, int devices);
  Link connect(const Cluster& cluster, int rule, std::pair<int, int> ends, const std::string& name);
  void expand(const Cluster& cluster, int devices, int rule);
  const Tree& tree(int from, int devices);

  /// The last channel of the way between two devices.
  struct LastChannel {
    const Exit* last = nullptr;  ///< Null if there is no way.
    bool ties = false;           ///< Another one is as good.
  };
  LastChannel arrival(int from, int to, int devices);
};

/// The vertex of a name. A switch that is new gets the next number after the devices.
int Topology::Graph::vertex(const LinkName& name, const PlaceholderValues& place, int first_device,
                            int devices) {
  if (name.is_device()) return first_device + name.device(place);
  const int next = devices + static_cast<int>(switches.size());
  const int count = switches.try_emplace(name.at(place), next).first->second;
  if (static_cast<std::size_t>(count) >= exits.size()) exits.resize(count + 1);
  return count;
}

/// Adds a link between two vertices.
Topology::Graph::Link Topology::Graph::connect(const Cluster& cluster, int rule,
                                               std::pair<int, int> ends, const std::string& name) {
  const LinkRule& link = cluster.links[rule];
  const auto add = [&](const std::string& channel) {
    channels.push_back({.name = channel, .rule = rule, .bytes_per_s = link.bytes_per_s});
    return static_cast<int>(channels.size()) - 1;
  };
  const int split = static_cast<int>(name.find('>'));
  const auto [from, to] = ends;
  const int there = add(name);
  const int back = link.half_duplex
                       ? there
                       : add(fmt::format("{}>{}", name.substr(split + 1), name.substr(0, split)));
  exits[from].push_back({to, there});
  exits[to].push_back({from, back});
  if (static_cast<std::size_t>(to) < entries.size()) entries[to].push_back({from, there});
  if (static_cast<std::size_t>(from) < entries.size()) entries[from].push_back({to, back});
  return {from, to, there, back};
}

/// Adds the links of one rule: one for each different pair of ends.
void Topology::Graph::expand(const Cluster& cluster, int devices, int rule) {
  const LinkRule& link = cluster.links[rule];
  const std::string where = fmt::format("cluster {}: link {}: ", cluster.name, rule + 1);
  const LinkName from(where, link.from);
  const LinkName to(where, link.to);
  const bool names_j = from.uses('j') || to.uses('j');
  const int per_node = cluster.devices_per_node;
  const auto name_of = [&](const LinkName& name, const PlaceholderValues& place) {
    return name.is_device() ? fmt::format("n{}.d{}", place.n, name.device(place)) : name.at(place);
  };
  std::map<std::pair<int, int>, Link> known;
  by_rule[rule].resize(static_cast<std::size_t>(devices) * (names_j ? per_node : 1));
  for (int d = 0; d < devices; ++d) {
    const int n = d / per_node;
    const int present = std::min(per_node, devices - n * per_node);
    for (int j = names_j ? d % per_node + 1 : 0; j < (names_j ? present : 1); ++j) {
      const PlaceholderValues place{.n = n, .i = d % per_node, .j = j};
      const std::pair<int, int> ends{vertex(from, place, n * per_node, devices),
                                     vertex(to, place, n * per_node, devices)};
      if (ends.first == ends.second) {
        fail<InvalidArgument>("{}both ends are {}; two different ends are required", where,
                              name_of(from, place));
      }
      const auto [at, is_new] = known.try_emplace(ends);
      if (is_new) {
        at->second = connect(cluster, rule, ends,
                             fmt::format("{}>{}", name_of(from, place), name_of(to, place)));
      }
      by_rule[rule][names_j ? static_cast<std::size_t>(d) * per_node + j : d] = at->second;
    }
  }
}

/// Breadth first over the switches, from a device. All ways of the same length to a switch are seen
/// before it is left, so its width is final by then.
const Topology::Graph::Tree& Topology::Graph::tree(int from, int devices) {
  const auto [at, is_new] = trees.try_emplace(from);
  Tree& tree = at->second;
  if (!is_new) return tree;
  const std::size_t count = switches.size();
  tree.distance.assign(count, 0);
  tree.width.assign(count, 0);
  tree.before.assign(count, {});
  std::vector<int> order{from};
  for (std::size_t next = 0; next < order.size(); ++next) {
    const int vertex = order[next];
    const bool first = next == 0;
    const int distance = first ? 0 : tree.distance[vertex - devices];
    double width = kNoCap;
    if (!first) width = tree.width[vertex - devices];
    for (const Exit& exit : exits[vertex]) {
      if (exit.to < devices) continue;
      const int s = exit.to - devices;
      const double through = std::min(width, channels[exit.channel].bytes_per_s);
      if (tree.distance[s] == distance + 1 && tree.width[s] == through) tree.ties = true;
      if (tree.distance[s] == 0) {
        order.push_back(exit.to);
      } else if (tree.distance[s] != distance + 1 || tree.width[s] >= through) {
        continue;
      }
      tree.distance[s] = distance + 1;
      tree.width[s] = through;
      tree.before[s] = {vertex, exit.channel};
    }
  }
  return tree;
}

/// The best way goes through the best neighbour of the destination.
Topology::Graph::LastChannel Topology::Graph::arrival(int from, int to, int devices) {
  const Tree& ways = tree(from, devices);
  LastChannel arrival;
  std::pair<int, double> best;  // Negative distance, then width: more is better.
  for (const Exit& entry : entries[to]) {
    const double own = channels[entry.channel].bytes_per_s;
    std::pair<int, double> result{0, own};
    if (entry.to < devices) {
      if (entry.to != from) continue;
    } else {
      const int s = entry.to - devices;
      if (ways.distance[s] == 0) continue;
      result = {-ways.distance[s], std::min(own, ways.width[s])};
    }
    if (arrival.last != nullptr && result == best) arrival.ties = true;
    if (arrival.last != nullptr && result <= best) continue;
    arrival = {.last = &entry, .ties = false};
    best = result;
  }
  return arrival;
}

namespace {

/// `; nearest: c1:nodes=3` if the cluster connects so many devices when it has more nodes; a file
/// says how many it has.
std::string nearest_cluster(Cluster cluster, int devices) {
  cluster.nodes = (devices - 1) / cluster.devices_per_node + 1;
  try {
    [[maybe_unused]] const Topology larger(cluster, devices);
  } catch (const InvalidArgument&) {
    return "; its links do not connect several nodes";
  }
  const std::vector<std::string> presets = preset_names();
  const bool is_preset = std::ranges::find(presets, cluster.name) != presets.end();
  return is_preset ? fmt::format("; nearest: {}:nodes={}", cluster.name, cluster.nodes)
                   : fmt::format("; nearest: nodes.count = {} in its file", cluster.nodes);
}

}  // namespace

Topology::Topology(const Cluster& cluster, int devices)
    : cluster_(cluster), devices_(devices), graph_(std::make_unique<Graph>()) {
  if (devices > cluster.devices()) {
    fail<InvalidArgument>("cluster {}: {} given; at most its {} ({} x {}) are required{}",
                          cluster.name, count_of(devices, "rank"),
                          count_of(cluster.devices(), "device"), cluster.nodes,
                          cluster.devices_per_node, nearest_cluster(cluster, devices));
  }
  graph_->exits.resize(devices);
  graph_->entries.resize(devices);
  graph_->by_rule.resize(cluster.links.size());
  for (int rule = 0; rule < static_cast<int>(cluster.links.size()); ++rule) {
    graph_->expand(cluster, devices, rule);
  }
  // Links work in both directions, so it is enough that device 0 reaches all others.
  for (int d = 1; d < devices; ++d) {
    if (route(0, d).channels.empty()) {
      fail<InvalidArgument>(
          "cluster {}: no link leads from device 0 to device {} (node {}); links "
          "that connect all devices are required",
          cluster.name, d, node_of(d));
    }
  }
}

Topology::~Topology() = default;
Topology::Topology(Topology&&) noexcept = default;
Topology& Topology::operator=(Topology&&) noexcept = default;

const std::vector<Channel>& Topology::channels() const {
  return graph_->channels;
}

const MessageRoute& Topology::route(int from, int to) const {
  ARMILLARY_CHECK(from != to && from >= 0 && to >= 0 && from < devices_ && to < devices_);
  const std::int64_t key = static_cast<std::int64_t>(from) * devices_ + to;
  const auto [at, is_new] = graph_->routes.try_emplace(key);
  MessageRoute& route = at->second;
  if (!is_new) return route;
  const Graph::Tree& tree = graph_->tree(from, devices_);
  const Graph::Exit* last = graph_->arrival(from, to, devices_).last;
  if (last == nullptr) return route;
  // The channels before it, back to the source.
  route.channels.push_back(last->channel);
  for (int vertex = last->to; vertex != from; vertex = tree.before[vertex - devices_].to) {
    route.channels.push_back(tree.before[vertex - devices_].channel);
  }
  std::reverse(route.channels.begin(), route.channels.end());
  for (const int c : route.channels) {
    const int rule = graph_->channels[c].rule;
    const LinkRule& link = cluster_.links[rule];
    route.latency_s += link.latency_s;
    route.flow_bytes_per_s = std::min(route.flow_bytes_per_s, link.flow_bytes_per_s);
    if (!link.flow_rates.empty()) route.limited_by.push_back(rule);
  }
  return route;
}

double Topology::flow_limit(const MessageRoute& route, double bytes) const {
  double limit = route.flow_bytes_per_s;
  for (const int rule : route.limited_by) {
    limit = std::min(limit, interpolate(cluster_.links[rule].flow_rates, bytes));
  }
  return limit;
}

/// Each place of a rule has an image, the place of the devices that come instead. All places that
/// are one link must have one link as their image, and all links of a switch must lead to one
/// switch. Then routes have images too, unless the order of the links decides between two of them.
std::vector<int> Topology::rotated(int shift) const {
  const auto moved = [&](int device) { return (device + shift) % devices_; };
  std::vector<int> image(graph_->channels.size(), -1);
  std::vector<int> vertices(graph_->exits.size(), -1);
  for (int d = 0; d < devices_; ++d) vertices[d] = moved(d);
  const auto agrees = [](std::vector<int>& images, int one, int other) {
    if (images[one] < 0) images[one] = other;
    return images[one] == other;
  };
  const int per_node = cluster_.devices_per_node;
  for (const std::vector<Graph::Link>& places : graph_->by_rule) {
    const bool names_j = places.size() != static_cast<std::size_t>(devices_);
    for (std::size_t p = 0; p < places.size(); ++p) {
      const Graph::Link& link = places[p];
      if (link.there < 0) continue;
      std::size_t at = moved(static_cast<int>(p));
      bool swapped = false;
      if (names_j) {
        const int d = static_cast<int>(p) / per_node;
        int a = moved(d);
        int b = moved(d / per_node * per_node + static_cast<int>(p) % per_node);
        if (node_of(a) != node_of(b)) return {};
        swapped = a > b;
        if (swapped) std::swap(a, b);
        at = static_cast<std::size_t>(a) * per_node + b % per_node;
      }
      if (places[at].there < 0) return {};
      const Graph::Link other = swapped ? places[at].reversed() : places[at];
      if (!agrees(vertices, link.from, other.from) || !agrees(vertices, link.to, other.to) ||
          !agrees(image, link.there, other.there) || !agrees(image, link.back, other.back)) {
        return {};
      }
    }
  }
  // Ties come last, for they cost most and few shifts come so far.
  for (int d = 0; d < shift; ++d) {
    if (graph_->tree(d, devices_).ties) return {};
    for (int to = 0; to < devices_; ++to) {
      if (to != d && graph_->arrival(d, to, devices_).ties) return {};
    }
  }
  return image;
}

}  // namespace armillary::sim
