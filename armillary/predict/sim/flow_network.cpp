// Progressive filling of the flows near a change, while all others keep their rates. Rates are
// max-min fair if each flow has a limit: its own, or a channel that is full and on which nobody has
// more. So the limits of the flows around are checked, and where one does not hold the flows of its
// channel are filled too. A change costs what it changes, whatever the rest of the network does.
#include "armillary/predict/sim/flow_network.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "armillary/core/error.h"

namespace armillary::sim {
namespace {

/// Rounding of sums of rates: a channel whose demand exceeds its capacity by less is not full.
constexpr double kSlack = 1e-9;
/// A rate that was computed again, from other sums, is the same if it differs by less.
constexpr double kSameRate = 1e-13;
/// A component that has been widened so often is taken whole.
constexpr int kMostRounds = 3;

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
    rates_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  FlowState& flow = flows_[id];
  flow.route = route;
  flow.count = count;
  flow.bytes = flow.left = bytes;
  flow.since = now;
  flow.queued = std::numeric_limits<double>::infinity();
  flow.places.assign(route.size(), 0);
  double largest = largest_rate;
  for (const Crossing& crossing : route) {
    largest = std::min(largest, channels_[crossing.channel].alone / flow.share(crossing));
  }
  rates_[id].rate = 0;
  rates_[id].largest = largest;
  // Its place on every channel.
  for (std::size_t h = 0; h < route.size(); ++h) {
    const double share = flow.share(route[h]);
    ChannelState& channel = channels_[route[h].channel];
    flow.places[h] = static_cast<int>(channel.users.size());
    channel.users.push_back({id, static_cast<int>(h), share});
    channel.demand += largest * share;
    crowd(channel, share);
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
        channel.users.empty() ? 0 : channel.demand - rates_[id].largest * flow.share(crossing);
    crowd(channel, -flow.share(crossing));
    moved_[crossing.channel] += flow.bytes * flow.share(crossing);
  }
  ++flow.version;
  rates_[id].rate = 0;
  free_.push_back(id);
  events_ += flow.count;
}

void FlowNetwork::add_to_component(int flow) {
  if (rates_[flow].mark == mark_) return;
  rates_[flow].mark = mark_;
  component_.push_back(flow);
}

void FlowNetwork::add_users(int channel) {
  for (const User& user : channels_[channel].users) add_to_component(user.flow);
}

/// Begins with the flows that started, and all users of changed channels.
void FlowNetwork::begin_component() {
  ++mark_;
  component_.clear();
  for (const int flow : started_) {
    if (flows_[flow].left > 0) add_to_component(flow);
  }
  for (const int c : changed_channels_) {
    channels_[c].changed = false;
    add_users(c);
  }
  started_.clear();
  changed_channels_.clear();
}

/// Adds all flows that are coupled to those of the component, directly or not.
void FlowNetwork::close_component() {
  ++channel_mark_;
  // The list grows while it is read.
  for (std::size_t next = 0; next < component_.size(); ++next) {
    for (const Crossing& crossing : flows_[component_[next]].route) {
      ChannelState& channel = channels_[crossing.channel];
      if (channel.mark == channel_mark_ || !couples(channel)) continue;
      channel.mark = channel_mark_;
      add_users(crossing.channel);
    }
  }
}

/// Adds the users of channels on which a rate is not max-min fair, now that some have changed; on
/// those whose users are all in the component filling has made them so. Returns whether there was
/// one.
bool FlowNetwork::widen_component() {
  const std::size_t before = component_.size();
  for (const int c : coupled_) {
    if (channels_[c].has_others && !is_fair(c)) add_users(c);
  }
  return component_.size() > before;
}

/// Whether all flows that are limited by the channel still are: it is full, and no other user has
/// more. Rates are max-min fair if that holds for all channels.
bool FlowNetwork::is_fair(int c) const {
  const ChannelState& channel = channels_[c];
  double used = 0;
  double largest = 0;
  double least = std::numeric_limits<double>::infinity();
  for (const User& user : channel.users) {
    const RateState& flow = rates_[user.flow];
    const double rate = present_rate(flow);
    used += rate * user.share;
    largest = std::max(largest, rate);
    if (flow.limit == c) least = std::min(least, rate);
  }
  if (least == std::numeric_limits<double>::infinity()) return true;
  return used >= channel.capacity * (1 - kSlack) && largest <= least * (1 + kSlack);
}

/// Gives a flow its rate, and takes it from the channels.
void FlowNetwork::freeze(int id, double rate, int limit) {
  RateState& rates = rates_[id];
  rates.frozen = true;
  rates.limit = limit;
  rates.next = rate;
  const FlowState& flow = flows_[id];
  for (const Crossing& crossing : flow.route) {
    ChannelState& channel = channels_[crossing.channel];
    if (channel.mark != channel_mark_) continue;
    channel.left = std::max(0.0, channel.left - rate * flow.share(crossing));
    channel.weight -= flow.share(crossing);
  }
}

/// The channels that couple flows of the component, with what flows outside leave of them, as a
/// heap of fair shares.
void FlowNetwork::begin_filling() {
  ++channel_mark_;
  coupled_.clear();
  shares_.clear();
  for (const int id : component_) {
    rates_[id].frozen = false;
    for (const Crossing& crossing : flows_[id].route) {
      ChannelState& channel = channels_[crossing.channel];
      if (channel.mark == channel_mark_ || !couples(channel)) continue;
      channel.mark = channel_mark_;
      coupled_.push_back(crossing.channel);
    }
  }
  for (const int c : coupled_) {
    ChannelState& channel = channels_[c];
    channel.left = channel.capacity;
    channel.weight = 0;
    channel.has_others = false;
    for (const User& user : channel.users) {
      const RateState& flow = rates_[user.flow];
      if (flow.mark == mark_) {
        channel.weight += user.share;
      } else {
        channel.left -= flow.rate * user.share;
        channel.has_others = true;
      }
    }
    channel.left = std::max(0.0, channel.left);
    shares_.emplace_back(channel.left / channel.weight, c);
  }
  std::make_heap(shares_.begin(), shares_.end(), std::greater<>());
}

/// Progressive filling: the smallest of the fair shares of the channels and the largest rates of
/// the flows is next. Fair shares only rise while others are frozen, so an entry of the heap that
/// is out of date is too small, and goes back with its present value.
void FlowNetwork::fill() {
  // Most flows of a component have the same largest rate; their order does not matter.
  const auto is_smaller = [&](int a, int b) { return rates_[a].largest < rates_[b].largest; };
  if (!std::is_sorted(component_.begin(), component_.end(), is_smaller)) {
    std::stable_sort(component_.begin(), component_.end(), is_smaller);
  }
  begin_filling();
  for (std::size_t next = 0; next < component_.size();) {
    const int flow = component_[next];
    if (rates_[flow].frozen) {
      ++next;
      continue;
    }
    // The flow reaches its own limit first.
    if (shares_.empty() || rates_[flow].largest <= shares_.front().first) {
      freeze(flow, rates_[flow].largest, kOwnLimit);
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
      const RateState& other = rates_[user.flow];
      if (other.mark == mark_ && !other.frozen) freeze(user.flow, share, c);
    }
  }
}

/// Gives a flow the rate that was computed.
void FlowNetwork::set_rate(int id, double now) {
  FlowState& flow = flows_[id];
  RateState& rates = rates_[id];
  flow.left = std::max(0.0, flow.left - rates.rate * (now - flow.since));
  flow.since = now;
  rates.rate = rates.next;
  flow.end = now + flow.left / rates.rate;
  // An end that comes too early is put off when it comes: many rates rise again before.
  if (flow.end < flow.queued) push_end(id);
}

void FlowNetwork::push_end(int id) {
  FlowState& flow = flows_[id];
  flow.queued = flow.end;
  ends_.push({flow.end, id, ++flow.version});
}

void FlowNetwork::settle(double now) {
  if (started_.empty() && changed_channels_.empty()) {
    component_.clear();
    return;
  }
  begin_component();
  fill();
  for (int round = 0; widen_component(); ++round) {
    if (round == kMostRounds) close_component();
    fill();
  }
  // Flows whose rate is the same, but for rounding, keep their end.
  std::erase_if(component_, [&](int flow) {
    return std::abs(rates_[flow].next - rates_[flow].rate) <= kSameRate * rates_[flow].rate;
  });
  for (const int flow : component_) set_rate(flow, now);
}

double FlowNetwork::next_end() {
  while (!ends_.empty()) {
    const FlowEnd next = ends_.top();
    const FlowState& flow = flows_[next.flow];
    if (flow.version == next.version && flow.end <= next.time) return next.time;
    ends_.pop();
    if (flow.version == next.version) push_end(next.flow);
  }
  return std::numeric_limits<double>::infinity();
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
