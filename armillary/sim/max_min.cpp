// Progressive filling of all changed components at once. Flows and channels know each other by
// index, so that a change costs the size of its component, whatever the rest of the network does.
#include "armillary/sim/max_min.h"

#include <algorithm>
#include <limits>

#include "armillary/core/error.h"

namespace armillary::sim {
namespace {

/// Rounding of sums of rates: a channel whose demand exceeds its capacity by less is not full.
constexpr double kSlack = 1e-9;

}  // namespace

FlowNetwork::FlowNetwork(const std::vector<double>& capacities, const std::vector<double>& crowding)
    : channels_(capacities.size()), moved_(capacities.size()) {
  for (std::size_t c = 0; c < capacities.size(); ++c) {
    channels_[c].alone = channels_[c].capacity = capacities[c];
    if (!crowding.empty()) channels_[c].crowding = crowding[c];
  }
}

/// Adds users to a channel, or takes them away, and sets the capacity that is left to them.
void FlowNetwork::crowd(ChannelState& channel, double users) {
  if (channel.crowding == 0) return;
  channel.weight_of_users += users;
  channel.capacity =
      channel.alone / (1 + channel.crowding * std::max(0.0, channel.weight_of_users - 1));
}

bool FlowNetwork::couples(const ChannelState& channel) const {
  return channel.demand > channel.capacity * (1 + kSlack);
}

/// Remembers a channel that couples flows, or did, so that settle() computes their rates.
void FlowNetwork::note_change(int channel) {
  if (channels_[channel].changed) return;
  channels_[channel].changed = true;
  changed_channels_.push_back(channel);
}

int FlowNetwork::start(double now, std::span<const Crossing> route, double largest_rate,
                       double bytes, int count) {
  // An id with its state; the vectors of an old one keep their memory.
  int id = static_cast<int>(flows_.size());
  if (free_.empty()) {
    flows_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  FlowState& flow = flows_[id];
  flow.route = route;
  flow.count = count;
  flow.bytes = flow.left = bytes;
  flow.since = now;
  flow.rate = 0;
  flow.largest = largest_rate;
  flow.places.assign(route.size(), 0);
  for (const Crossing& crossing : route) {
    flow.largest = std::min(flow.largest, channels_[crossing.channel].alone / flow.share(crossing));
  }
  // Its place on every channel.
  for (std::size_t h = 0; h < route.size(); ++h) {
    ChannelState& channel = channels_[route[h].channel];
    flow.places[h] = static_cast<int>(channel.users.size());
    channel.users.push_back({id, static_cast<int>(h)});
    channel.demand += flow.largest * flow.share(route[h]);
    crowd(channel, flow.share(route[h]));
    if (couples(channel)) note_change(route[h].channel);
  }
  started_.push_back(id);
  events_ += count;
  return id;
}

/// Takes a flow that has ended from its channels.
void FlowNetwork::release(int id) {
  FlowState& flow = flows_[id];
  for (std::size_t h = 0; h < flow.route.size(); ++h) {
    const Crossing& crossing = flow.route[h];
    ChannelState& channel = channels_[crossing.channel];
    if (couples(channel)) note_change(crossing.channel);
    // The last user takes the place.
    const User last = channel.users.back();
    channel.users[flow.places[h]] = last;
    flows_[last.flow].places[last.crossing] = flow.places[h];
    channel.users.pop_back();
    channel.demand =
        channel.users.empty() ? 0 : channel.demand - flow.largest * flow.share(crossing);
    crowd(channel, -flow.share(crossing));
    moved_[crossing.channel] += flow.bytes * flow.share(crossing);
  }
  ++flow.version;
  flow.rate = 0;
  free_.push_back(id);
  events_ += flow.count;
}

void FlowNetwork::add_to_component(int flow) {
  if (flows_[flow].mark == mark_) return;
  flows_[flow].mark = mark_;
  component_.push_back(flow);
}

/// Flows whose rate may change: those that started, all users of changed channels, and whatever is
/// coupled to these.
void FlowNetwork::collect_component() {
  ++mark_;
  component_.clear();
  coupled_.clear();
  for (const int flow : started_) {
    if (flows_[flow].left > 0) add_to_component(flow);
  }
  for (const int c : changed_channels_) {
    channels_[c].changed = false;
    for (const User& user : channels_[c].users) add_to_component(user.flow);
  }
  started_.clear();
  changed_channels_.clear();
  // The list grows while it is read.
  for (std::size_t next = 0; next < component_.size(); ++next) {
    for (const Crossing& crossing : flows_[component_[next]].route) {
      ChannelState& channel = channels_[crossing.channel];
      if (channel.mark == mark_ || !couples(channel)) continue;
      channel.mark = mark_;
      coupled_.push_back(crossing.channel);
      for (const User& user : channel.users) add_to_component(user.flow);
    }
  }
}

/// Gives a flow its rate, and takes it from the channels.
void FlowNetwork::freeze(int id, double rate) {
  FlowState& flow = flows_[id];
  flow.frozen = true;
  new_rates_[id] = rate;
  for (const Crossing& crossing : flow.route) {
    ChannelState& channel = channels_[crossing.channel];
    if (channel.mark != mark_) continue;
    channel.left = std::max(0.0, channel.left - rate * flow.share(crossing));
    channel.weight -= flow.share(crossing);
  }
}

/// Progressive filling: the smallest of the fair shares of the channels and the largest rates of
/// the flows is next. Fair shares only rise while others are frozen, so an entry of the heap that
/// is out of date is too small, and goes back with its present value.
void FlowNetwork::fill() {
  // Most flows of a component have the same largest rate; their order does not matter.
  const auto is_smaller = [&](int a, int b) { return flows_[a].largest < flows_[b].largest; };
  if (!std::is_sorted(component_.begin(), component_.end(), is_smaller)) {
    std::stable_sort(component_.begin(), component_.end(), is_smaller);
  }
  shares_.clear();
  for (const int c : coupled_) {
    ChannelState& channel = channels_[c];
    channel.left = channel.capacity;
    channel.weight = 0;
    for (const User& user : channel.users) {
      const FlowState& flow = flows_[user.flow];
      channel.weight += flow.share(flow.route[user.crossing]);
    }
    shares_.emplace_back(channel.left / channel.weight, c);
  }
  for (const int flow : component_) flows_[flow].frozen = false;
  std::make_heap(shares_.begin(), shares_.end(), std::greater<>());
  for (std::size_t next = 0; next < component_.size();) {
    const int flow = component_[next];
    if (flows_[flow].frozen) {
      ++next;
      continue;
    }
    // The flow reaches its own limit first.
    if (shares_.empty() || flows_[flow].largest <= shares_.front().first) {
      freeze(flow, flows_[flow].largest);
      continue;
    }
    std::pop_heap(shares_.begin(), shares_.end(), std::greater<>());
    const auto [share, c] = shares_.back();
    shares_.pop_back();
    // Weights are sums of shares: less than a rounding error is nothing.
    const ChannelState& channel = channels_[c];
    if (channel.weight < kSlack) continue;
    const double present = channel.left / channel.weight;
    if (present > share) {
      shares_.emplace_back(present, c);
      std::push_heap(shares_.begin(), shares_.end(), std::greater<>());
      continue;
    }
    for (const User& user : channel.users) {
      if (!flows_[user.flow].frozen) freeze(user.flow, share);
    }
  }
}

void FlowNetwork::set_rate(int id, double rate, double now) {
  FlowState& flow = flows_[id];
  flow.left = std::max(0.0, flow.left - flow.rate * (now - flow.since));
  flow.since = now;
  flow.rate = rate;
  ++flow.version;
  ends_.push({now + flow.left / rate, id, flow.version});
}

void FlowNetwork::settle(double now) {
  if (started_.empty() && changed_channels_.empty()) {
    component_.clear();
    return;
  }
  collect_component();
  if (new_rates_.size() < flows_.size()) new_rates_.resize(flows_.size());
  fill();
  // Flows whose rate is the same keep their end.
  std::erase_if(component_, [&](int flow) { return new_rates_[flow] == flows_[flow].rate; });
  for (const int flow : component_) set_rate(flow, new_rates_[flow], now);
}

double FlowNetwork::next_end() {
  while (!ends_.empty() && flows_[ends_.top().flow].version != ends_.top().version) ends_.pop();
  return ends_.empty() ? std::numeric_limits<double>::infinity() : ends_.top().time;
}

void FlowNetwork::end_until(double until, std::vector<int>& ended) {
  while (next_end() <= until) {
    const int flow = ends_.top().flow;
    ends_.pop();
    flows_[flow].left = 0;
    release(flow);
    ended.push_back(flow);
  }
}

}  // namespace armillary::sim
