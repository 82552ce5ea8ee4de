// The file reads in the order of a run: (1) setting up, (2) starting batches, (3) completion of ops
// and the speed of compute, (4) the event loop. machine_messages.cpp has the life of a message,
// machine_result.cpp the end of a run.
#include "armillary/predict/sim/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::sim {
namespace {

/// Events that lie nearer than this share of the time are one instant: symmetric ranks differ in
/// rounding only.
constexpr double kInstant = 1e-12;

std::vector<double> capacities(const Topology& topology) {
  std::vector<double> all;
  for (const Channel& channel : topology.channels()) all.push_back(channel.bytes_per_s);
  return all;
}

std::vector<double> crowding(const Topology& topology) {
  std::vector<double> all;
  for (const Channel& channel : topology.channels()) {
    all.push_back(topology.cluster().links[channel.rule].crowding);
  }
  return all;
}

}  // namespace

// 1. Setting up.

SimMachine::SimMachine(MachineInput input, std::vector<RankLanes> lanes)
    : input_(std::move(input)),
      network_(capacities(input_.topology), crowding(input_.topology)),
      bursts_(input_.topology),
      orbit_(input_.topology.channels().size()),
      orbit_size_(orbit_.size(), 0),
      lanes_(std::move(lanes)),
      ranks_(lanes_.size()),
      copies_(lanes_.size()),
      timelines_(lanes_.size()) {
  // Channels that are alike under the rotation of the fold: the lowest stands for all.
  std::iota(orbit_.begin(), orbit_.end(), 0);
  if (input_.fold.copies() > 1) {
    const std::vector<int> image = input_.topology.rotated(input_.fold.classes);
    ARMILLARY_CHECK(!image.empty() || orbit_.empty());
    for (int c = 0; c < static_cast<int>(image.size()); ++c) {
      if (orbit_[c] != c) continue;
      for (int d = image[c]; d != c; d = image[d]) orbit_[d] = c;
    }
  }
  for (const int c : orbit_) ++orbit_size_[c];
  for (std::size_t r = 0; r < lanes_.size(); ++r) {
    const RankLanes& rank = lanes_[r];
    for (const int batch : rank.first_batch) lane_states_.push_back({batch});
    RankTimeline& timeline = timelines_[r];
    timeline.sent_bytes = rank.sent_bytes;
    timeline.received_bytes = rank.received_bytes;
    timeline.slot_bytes = timeline.peak_bytes = rank.slot_bytes;
    timeline.external_bytes = rank.external_bytes;
    if (input_.record.ops) timeline.ops.resize(rank.ops.size());
  }
  connect();
  point_to_lanes();
}

/// The arrays of each rank, once they no longer grow.
void SimMachine::point_to_lanes() {
  LaneState* lane_states = lane_states_.data();
  const int* queues = port_queues_.data();
  for (std::size_t r = 0; r < lanes_.size(); ++r) {
    RankLanes& rank = lanes_[r];
    SimRank& state = ranks_[r];
    state.ops = rank.ops.data();
    state.batches = rank.batches.data();
    state.followers = rank.followers.data();
    state.ports = rank.ports.data();
    state.lanes = lane_states;
    state.queues = queues;
    state.lane_count = static_cast<int>(rank.first_batch.size());
    lane_states += rank.first_batch.size();
    queues += rank.ports.size();
  }
}

/// Senders and receivers that are alike meet by the class of both and the distance between them.
SimMachine::PostQueueKey SimMachine::key_of(const ShiftFold& fold, int rank, const Port& port) {
  const int from = port.sends ? rank : port.peer % fold.classes;
  const int distance = port.sends ? port.peer - rank : rank - port.peer;
  return {from, (distance % fold.world + fold.world) % fold.world, port.lane};
}

bool SimMachine::grouped_alike(const ShiftFold& fold, const std::vector<RankLanes>& lanes) {
  std::map<PostQueueKey, std::uint64_t> known;
  for (std::size_t r = 0; r < lanes.size(); ++r) {
    for (const Port& port : lanes[r].ports) {
      const PostQueueKey key = key_of(fold, static_cast<int>(r), port);
      if (known.try_emplace(key, port.groups).first->second != port.groups) return false;
    }
  }
  return true;
}

/// Makes one queue for both ports of every (sender, receiver, lane).
void SimMachine::connect() {
  std::map<PostQueueKey, int> known;
  std::map<std::pair<int, int>, int> connections;  // By sender and distance.
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
    for (const Port& port : lanes_[r].ports) {
      const PostQueueKey key = key_of(input_.fold, r, port);
      const auto [at, is_new] = known.try_emplace(key, static_cast<int>(queues_.size()));
      if (is_new) {
        const auto [from, distance, lane] = key;
        PostQueue& queue = queues_.emplace_back();
        queue.from = from;
        queue.to = (from + distance) % input_.fold.world;
        fill_crossings(queue);
        if (in_order()) {
          const int next = static_cast<int>(connections.size());
          queue.connection = connections.try_emplace({from, distance}, next).first->second;
        }
      }
      port_queues_.push_back(at->second);
    }
  }
  connections_.resize(connections.size());
}

/// The channels of the route, with the flows on each: a flow stands for one of every copy, and
/// these are spread evenly over channels that are alike.
void SimMachine::fill_crossings(PostQueue& queue) const {
  const int from = input_.placement[queue.from];
  const int to = input_.placement[queue.to];
  if (from == to) return;
  queue.route = &input_.topology.route(from, to);
  for (const int channel : queue.route->channels) {
    const int c = orbit_[channel];
    const double share = input_.fold.copies() / orbit_size_[c];
    const auto same = std::find_if(queue.crossings.begin(), queue.crossings.end(),
                                   [&](const Crossing& crossing) { return crossing.channel == c; });
    if (same == queue.crossings.end()) {
      queue.crossings.push_back({c, share});
    } else {
      same->share += share;
    }
  }
}

/// Seconds of the exchanges in which ranks agree on a call (attention/agreement.h).
double SimMachine::agreement_s() const {
  const Cluster& cluster = input_.topology.cluster();
  const double bytes = cluster.host.agreement_bytes;
  double seconds = 0;
  if (bytes == 0) return seconds;
  for (int distance = 1; distance < input_.fold.world; distance *= 2) {
    const int from = input_.placement[0];
    const int to = input_.placement[distance];
    const MessageRoute& route = input_.topology.route(from, to);
    double rate = input_.topology.flow_limit(route, bytes);
    for (const int channel : route.channels) {
      rate = std::min(rate, input_.topology.channels()[channel].bytes_per_s);
    }
    seconds += cluster.messages.latency_s + route.latency_s + bytes / rate;
  }
  return seconds;
}

/// Seconds for which a rank waits for the others to agree, in forward: backward asks nobody.
double SimMachine::spin_s(const SimRank& state) const {
  if (!input_.topology.cluster().host.computes) return Host::kSpinSeconds;
  for (int b = state.lanes[plan::kCompute].next; b >= 0; b = state.batches[b].next) {
    const LaneOp& op = state.ops[state.batches[b].first_op];
    if ((input_.spin_kinds >> op.kind.number() & 1) == 0) continue;
    return std::max(Host::kSpinSeconds, Host::kSpinOps * op.work);
  }
  return Host::kSpinSeconds;
}

/// Ranks begin after the host's part of a call; their messages wait until all agree.
void SimMachine::begin() {
  const Host& host = input_.topology.cluster().host;
  const bool forward = input_.agrees;
  const double called = forward ? host.forward_s : host.backward_s;
  const double agree = forward ? agreement_s() : 0;
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
    ranks_[r].gated = agree > 0;
    const double spin = agree > 0 ? spin_s(ranks_[r]) : 0;
    if (agree > spin) push(EventKind::Begin, called + spin, r);
    push(EventKind::Begin, called + agree, r, /*version=*/1);
  }
}

// 2. Starting batches.

bool SimMachine::can_start(const SimRank& state, int lane) const {
  const LaneState& of_lane = state.lanes[lane];
  if (of_lane.next < 0 || state.batches[of_lane.next].waits > 0) return false;
  if (lane == plan::kCompute) return !is_busy(state);
  if (state.gated || (input_.topology.cluster().host.computes && is_busy(state))) return false;
  return of_lane.open == 0 || !input_.topology.cluster().messages.serial;
}

void SimMachine::start_ready() {
  // The list grows while it is read.
  for (std::size_t i = 0; i < ready_.size(); ++i) start_batches(ready_[i].first, ready_[i].second);
  ready_.clear();
}

void SimMachine::start_batches(int rank, int lane) {
  SimRank& state = ranks_[rank];
  // A thread that computes looks at messages first (runtime/executor.h).
  if (lane == plan::kCompute && input_.topology.cluster().host.computes) {
    for (int l = state.lane_count; --l > 0;) start_batches(rank, l);
  }
  while (can_start(state, lane)) {
    const LaneBatch& batch = state.batches[state.lanes[lane].next];
    state.lanes[lane].next = batch.next;
    for (int op = batch.first_op; op < batch.end_op; ++op) {
      if (input_.record.ops) timelines_[rank].ops[state.ops[op].op].start_s = now_;
      lane == plan::kCompute ? compute(rank, op) : post(rank, op);
    }
  }
}

void SimMachine::compute(int rank, int op) {
  SimRank& state = ranks_[rank];
  account(state);
  state.computing = op;
  state.began = now_;
  state.left = state.ops[op].work;
  state.since = now_;
  state.end = now_ + state.left * state.slowdown;
  push_end(rank);
  note_busy(+1);
}

// 3. Completion.

/// Tells the batches that wait for an op that it is complete.
void SimMachine::complete(int rank, int op) {
  SimRank& state = ranks_[rank];
  const LaneOp& ended = state.ops[op];
  state.end_s = now_;
  if (input_.record.ops) timelines_[rank].ops[ended.op].end_s = now_;
  for (int f = ended.first_follower; f < ended.end_follower; ++f) {
    LaneBatch& batch = state.batches[state.followers[f]];
    if (--batch.waits == 0) wake(rank, batch.lane);
  }
}

/// Adds the time since the last change to the sums of the rank.
void SimMachine::account(SimRank& state) {
  const double passed = now_ - state.accounted;
  state.accounted = now_;
  if (state.computing >= 0) state.compute_s += passed;
  if (state.posted == 0) return;
  state.messages_s += passed;
  if (state.computing < 0) state.exposed_s += passed;
}

/// Factor on the time of compute: by the flows of the rank, and by ranks that share its core.
double SimMachine::slowdown_of(const SimRank& state) const {
  const Cluster& cluster = input_.topology.cluster();
  const std::vector<double>& factors = cluster.device.slowdown;
  const auto flows = static_cast<std::size_t>(std::max(state.sending, state.receiving));
  const double factor = factors[std::min(flows, factors.size() - 1)];
  const int cores = cluster.host.cores;
  return cores == 0 || busy_ <= cores ? factor : factor * busy_ / cores;
}

/// The speed of compute after flows of the rank, or other ranks, have started or ended.
void SimMachine::set_slowdown(int rank) {
  SimRank& state = ranks_[rank];
  state.dirty = false;
  const double factor = slowdown_of(state);
  if (factor == state.slowdown) return;
  if (state.computing >= 0) {
    state.left = std::max(0.0, state.left - (now_ - state.since) / state.slowdown);
    state.since = now_;
    state.end = now_ + state.left * factor;
    // An event that comes too early is put off when it comes: most slow-downs pass before.
    if (state.end < state.queued) push_end(rank);
  }
  state.slowdown = factor;
}

void SimMachine::push_end(int rank) {
  SimRank& state = ranks_[rank];
  state.queued = state.end;
  push(EventKind::ComputeEnd, state.end, rank, ++state.version);
}

// 4. The event loop.

void SimMachine::push(EventKind kind, double time, int subject, int version) {
  events_.push({time, event_number_++, kind, subject, version});
}

void SimMachine::handle(const MachineEvent& event) {
  switch (event.kind) {
    case EventKind::FlowStart:
      return in_order() ? take_connection(event.subject) : start_flow(event.subject);
    case EventKind::Arrival:
      return arrive(event.subject);
    case EventKind::CopyEnd:
      return end_copy(event.subject);
    case EventKind::Begin:
      if (event.version == 1) ranks_[event.subject].gated = false;
      for (int lane = ranks_[event.subject].lane_count; --lane >= 0;) {
        wake(event.subject, lane);
      }
      return;
    case EventKind::ComputeEnd:
      break;
  }
  SimRank& state = ranks_[event.subject];
  if (event.version != state.version) return;  // It has become faster since,
  if (state.end > now_ * (1 + kInstant)) return push_end(event.subject);  // or slower.
  account(state);
  const int op = std::exchange(state.computing, -1);
  const std::size_t kind = state.ops[op].kind.number();
  timelines_[event.subject].compute_by_kind_s[kind] += now_ - state.began;
  note_busy(-1);
  complete(event.subject, op);
  wake(event.subject, plan::kCompute);
}

/// The end of an instant: new speeds of compute and new rates of flows.
void SimMachine::settle() {
  for (const int rank : dirty_) set_slowdown(rank);
  dirty_.clear();
  network_.settle(now_);
  if (!input_.record.flows) return;
  for (const int flow : network_.changed()) {
    Flow& recorded = flows_[messages_[message_of_flow_[flow]].recorded];
    recorded.rates.push_back({now_, network_.rate(flow)});
  }
}

Timeline SimMachine::run() {
  begin();
  std::vector<int> ended;
  for (;;) {
    double next = network_.next_end();
    if (!events_.empty()) next = std::min(next, events_.top().time);
    if (next == std::numeric_limits<double>::infinity()) break;
    now_ = std::max(now_, next);
    const double instant = now_ * (1 + kInstant);
    ended.clear();
    network_.end_until(instant, ended);
    // An arrival may start a flow, which takes the number of one that has ended.
    for (int& id : ended) id = message_of_flow_[id];
    for (const int message : ended) arrive(message);
    start_ready();
    while (!events_.empty() && events_.top().time <= instant) {
      const MachineEvent event = events_.top();
      events_.pop();
      handle(event);
      start_ready();
    }
    settle();
  }
  check_complete();
  return result();
}

}  // namespace armillary::sim
