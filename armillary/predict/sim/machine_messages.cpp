// machine_messages.cpp: the life of a message: posts that meet, a latency, then a flow over links,
// or a copy by a rank; and what its ranks are told at the end.
#include <algorithm>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/predict/sim/machine.h"

namespace armillary::sim {

void SimMachine::post(int rank, int op) {
  SimRank& state = ranks_[rank];
  account(state);
  ++state.posted;
  const int port = state.ops[op].port;
  ++state.lanes[state.ports[port].lane].open;
  const int queue = state.queues[port];
  const bool sends = state.ports[port].sends;
  // The other end is the oldest post of the other direction, or this end waits.
  PostQueue& m = queues_[queue];
  if (m.next < m.posts.size() && m.sends != sends) {
    const Post other = m.posts[m.next++];
    if (m.next == m.posts.size()) {
      m.posts.clear();
      m.next = 0;
    }
    sends ? match(queue, {rank, op}, other, rank) : match(queue, other, {rank, op}, rank);
    return;
  }
  m.sends = sends;
  m.posts.push_back({rank, op});
}

/// Both ends of a message are posted, that of rank `second` last.
void SimMachine::match(int queue, Post send, Post recv, int second) {
  const PostQueue& m = queues_[queue];
  const LaneOp& from = ranks_[send.rank].ops[send.op];
  const LaneOp& to = ranks_[recv.rank].ops[recv.op];
  if (from.work != to.work) {
    fail<PlanError>(
        "simulate: {}: op {} of rank {} sends {:.0f} bytes, and op {} of rank {} receives "
        "{:.0f}; equal sizes are required",
        input_.name, from.op, m.from, from.work, to.op, m.to, to.work);
  }
  ARMILLARY_CHECK(from.count == to.count);  // grouped_alike()
  int id = static_cast<int>(messages_.size());
  if (free_messages_.empty()) {
    messages_.emplace_back();
  } else {
    id = free_messages_.back();
    free_messages_.pop_back();
  }
  messages_[id] = {.send = send, .recv = recv, .queue = queue, .count = from.count};
  const Messages& engine = input_.topology.cluster().messages;
  const double latency = engine.latency_s + (m.route == nullptr ? 0 : m.route->latency_s);
  if (input_.record.flows) {
    messages_[id].recorded = static_cast<int>(flows_.size());
    flows_.push_back({.from = m.from,
                      .to = m.to,
                      .send = from.op,
                      .recv = to.op,
                      .bytes = static_cast<std::int64_t>(from.work),
                      .matched_s = now_,
                      .start_s = now_ + latency});
  }
  // A message within a device, of nothing, or of borrowed memory has no flow.
  const bool one_node = input_.topology.node_of(input_.placement[m.from]) ==
                        input_.topology.node_of(input_.placement[m.to]);
  const bool borrowed = engine.zero_copy && from.zero_copy && to.zero_copy && one_node;
  const bool flows = m.route != nullptr && from.work > 0 && !borrowed;
  if (flows && one_node && input_.topology.cluster().host.copies) {
    return copy_by_a_rank(id, second);
  }
  push(flows ? EventKind::FlowStart : EventKind::Arrival, now_ + latency, id);
}

/// Gives a message to the rank that copies it: the receiver, or `second` if that is busy. Every
/// copy of that rank does the same with its own message.
void SimMachine::copy_by_a_rank(int id, int second) {
  const int receiver = messages_[id].recv.rank;
  const int rank = is_busy(ranks_[receiver]) ? second : receiver;
  SimRank& state = ranks_[rank];
  const bool idle = !is_busy(state);
  copies_[rank].push_back(id);
  ++state.copying;
  if (!idle) return;
  note_busy(+1);
  start_copy(rank);
}

void SimMachine::start_copy(int rank) {
  const PostedMessage& message = messages_[copies_[rank].front()];
  const MessageRoute& route = *queues_[message.queue].route;
  const double bytes = ranks_[message.send.rank].ops[message.send.op].work;
  double rate = input_.topology.flow_limit(route, bytes);
  for (const int channel : route.channels) {
    rate = std::min(rate, input_.topology.channels()[channel].bytes_per_s);
  }
  const double latency = input_.topology.cluster().messages.latency_s + route.latency_s;
  push(EventKind::CopyEnd, now_ + latency + bytes / rate, rank);
}

void SimMachine::end_copy(int rank) {
  const int id = copies_[rank].front();
  copies_[rank].pop_front();
  if (--ranks_[rank].copying == 0) {
    note_busy(-1);
  } else {
    start_copy(rank);
  }
  arrive(id);
  wake(rank, plan::kCompute);
}

/// A message may flow, unless another one of the same two ranks does.
void SimMachine::take_connection(int id) {
  Connection& connection = connections_[queues_[messages_[id].queue].connection];
  const int before = std::exchange(connection.last, id);
  if (connection.first >= 0) {
    messages_[before].next = id;
  } else {
    connection.first = id;
    start_flow(id);
  }
}

/// The message has flowed; the next one does.
void SimMachine::leave_connection(int id) {
  Connection& connection = connections_[queues_[messages_[id].queue].connection];
  connection.first = messages_[id].next;
  if (connection.first >= 0) start_flow(connection.first);
}

void SimMachine::start_flow(int id) {
  PostedMessage& message = messages_[id];
  const PostQueue& queue = queues_[message.queue];
  const double bytes = ranks_[message.send.rank].ops[message.send.op].work;
  const double passed = bursts_.start(now_, queue.crossings, bytes);
  message.flow = network_.start(
      now_, queue.crossings, input_.topology.flow_limit(*queue.route, bytes), bytes, message.count);
  network_.pass(message.flow, passed);
  if (static_cast<std::size_t>(message.flow) >= message_of_flow_.size()) {
    message_of_flow_.resize(message.flow + 1);
  }
  message_of_flow_[message.flow] = id;
  if (message.recorded >= 0) {
    flows_[message.recorded].start_s = now_;
    flows_[message.recorded].passed_bytes = passed;
  }
  note_flow(id, +1);
}

/// Counts the flows of both ends, on which the speed of their compute ops depends.
void SimMachine::note_flow(int id, int change) {
  const PostedMessage& message = messages_[id];
  ranks_[message.send.rank].sending += change * message.count;
  ranks_[message.recv.rank].receiving += change * message.count;
  for (const int rank : {message.send.rank, message.recv.rank}) mark_dirty(rank);
}

/// Counts the ranks that work, if they share cores: the speed of all depends on it.
void SimMachine::note_busy(int change) {
  const int cores = input_.topology.cluster().host.cores;
  if (cores == 0) return;
  const int before = busy_;
  busy_ += change * input_.fold.copies();
  if (std::max(before, busy_) <= cores) return;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) mark_dirty(rank);
}

void SimMachine::mark_dirty(int rank) {
  if (ranks_[rank].dirty) return;
  ranks_[rank].dirty = true;
  dirty_.push_back(rank);
}

void SimMachine::arrive(int id) {
  const PostedMessage message = messages_[id];
  if (message.flow >= 0) {
    note_flow(id, -1);
    bursts_.end(now_, queues_[message.queue].crossings);
    if (in_order()) leave_connection(id);
  }
  if (message.recorded >= 0) flows_[message.recorded].end_s = now_;
  free_messages_.push_back(id);
  for (const Post& end : {message.send, message.recv}) {
    SimRank& state = ranks_[end.rank];
    account(state);
    --state.posted;
    const int lane = state.ports[state.ops[end.op].port].lane;
    --state.lanes[lane].open;
    complete(end.rank, end.op);
    wake(end.rank, lane);
  }
}

}  // namespace armillary::sim
