// flow_network.h: flows that share channels max-min fairly, in the fluid model.
//
// Every flow has a route and a largest rate of its own. Rates are max-min fair: no rate can be
// raised without lowering one that is not larger. They change only when a flow starts or ends, and
// then only in the component of flows that share a channel which can be full:
//
//   start, start, end  --settle-->  flows of the changed channels  --fill-->  new rates
//                                   flows around them  <--widen--
//
// A channel couples its flows only if their largest rates together exceed its capacity. Most
// channels of a network that is not oversubscribed never do.
#pragma once

#include <cstdint>
#include <queue>
#include <span>
#include <vector>

#include "armillary/core/small_vector.h"

namespace armillary::sim {

/// One channel of a flow. `share` is the number of flows that this one stands for on the channel:
/// 1, but for folded ranks (engine.h).
struct Crossing {
  int channel = 0;
  double share = 1;
};

/// Flows and their rates over time. Times never decrease from call to call.
class FlowNetwork {
 public:
  /// `crowding` is that of each channel (LinkRule), or empty for none.
  explicit FlowNetwork(const std::vector<double>& capacities,
                       const std::vector<double>& crowding = {});

  /// Starts a flow of `bytes` > 0 at time `now`, with rate 0 until settle(). `route` must stay
  /// valid until the flow has ended, and has each channel once. `largest_rate` may be infinite if
  /// the route is not empty. `count` such flows that start together always have the same rate, and
  /// are one here. Returns the id of the flow; ids of ended flows are used again.
  int start(double now, std::span<const Crossing> route, double largest_rate, double bytes,
            int count = 1);
  /// Lets a part of a flow, less than all, take no time. Requires that it started since settle().
  void pass(int flow, double bytes) { flows_[flow].left -= bytes; }

  /// Computes the rates that changed since the last call. The flows are listed by changed().
  void settle(double now);
  std::span<const int> changed() const { return component_; }
  double rate(int flow) const { return rates_[flow].rate; }

  /// Time at which the next flow ends; infinity if there is none. Requires settle().
  double next_end();
  /// Ends all flows whose time is at most `until`, and appends their ids to `ended`.
  void end_until(double until, std::vector<int>& ended);

  /// Bytes that ended flows have moved over each channel.
  const std::vector<double>& moved() const { return moved_; }
  std::int64_t events() const { return events_; }  ///< Starts and ends.

 private:
  /// RateState::limit of a flow that no channel limits.
  static constexpr int kOwnLimit = -1;

  struct FlowState {
    std::span<const Crossing> route;
    int count = 1;
    double bytes = 0;
    double left = 0;  ///< Bytes that are left at `since`.
    double since = 0;
    double end = 0;              ///< At the present rate.
    double queued = 0;           ///< Time of its end in the heap: may be too early, never too late.
    int version = 0;             ///< Ends in the heap with another version are out of date.
    SmallVector<int, 6> places;  ///< Position in the users of each channel of the route.
    /// Share of a channel of the route: that of one flow, as many times as there are.
    double share(const Crossing& crossing) const { return crossing.share * count; }
  };
  /// All that filling needs of a flow. It looks at thousands of them, so they lie close together.
  struct RateState {
    double rate = 0;        ///< Rate of one of FlowState::count, as bytes.
    double next = 0;        ///< While the rates of the component are computed.
    double largest = 0;     ///< Bound by the flow's own limit and the capacities of its channels.
    std::int64_t mark = 0;  ///< Equal to mark_: in the component.
    int limit = kOwnLimit;  ///< The channel that limits it.
    bool frozen = false;
  };
  struct User {
    int flow = 0;
    int crossing = 0;
    double share = 1;  ///< FlowState::share
  };
  struct ChannelState {
    std::int64_t mark = 0;  ///< Equal to channel_mark_: seen.
    double left = 0;        ///< While filling: capacity that is not given away yet,
    double weight = 0;      ///< and the users that have no rate yet.
    double capacity = 0;    ///< With the present users.
    double demand = 0;      ///< Sum of the largest rates of the users.
    std::vector<User> users;
    bool has_others = false;  ///< Users outside the component.
    bool changed = false;
    double alone = 0;     ///< Capacity with one user.
    double crowding = 0;  ///< LinkRule::crowding
    double weight_of_users = 0;
  };
  struct FlowEnd {
    double time;
    int flow;
    int version;
    bool operator>(const FlowEnd& other) const {
      return time != other.time ? time > other.time : flow > other.flow;
    }
  };

  bool couples(const ChannelState& channel) const;
  void crowd(ChannelState& channel, double users);
  void note_change(int channel);
  void add_to_component(int flow);
  void add_users(int channel);
  void begin_component();
  void close_component();
  bool widen_component();
  bool is_fair(int channel) const;
  void begin_filling();
  void fill();
  void freeze(int flow, double rate, int limit);
  /// The rate of a flow while rates of the component are computed.
  double present_rate(const RateState& flow) const {
    return flow.mark == mark_ ? flow.next : flow.rate;
  }
  void set_rate(int flow, double now);
  void push_end(int flow);
  void release(int flow);

  std::vector<ChannelState> channels_;
  std::vector<FlowState> flows_;
  std::vector<RateState> rates_;  ///< By flow.
  std::vector<int> free_;
  std::vector<int> started_;                    ///< Since the last settle().
  std::vector<int> changed_channels_;           ///< Likewise.
  std::vector<int> component_;                  ///< Flows whose rates are computed.
  std::vector<int> coupled_;                    ///< Their channels.
  std::vector<std::pair<double, int>> shares_;  ///< Heap of (fair share, channel).
  std::priority_queue<FlowEnd, std::vector<FlowEnd>, std::greater<>> ends_;
  std::vector<double> moved_;
  std::int64_t mark_ = 0;
  std::int64_t channel_mark_ = 0;
  std::int64_t events_ = 0;
};

}  // namespace armillary::sim
