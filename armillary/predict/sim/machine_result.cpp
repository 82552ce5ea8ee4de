// machine_result.cpp: the end of a run. A plan that is stuck becomes an error that says what waits,
// and for what; any other a timeline, with memory over time if ops were recorded.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/predict/sim/machine.h"

namespace armillary::sim {

/// The batch of an op.
int SimMachine::batch_of(int rank, int op) const {
  const std::vector<LaneBatch>& batches = lanes_[rank].batches;
  const auto after = std::partition_point(
      batches.begin(), batches.end(), [&](const LaneBatch& batch) { return batch.first_op <= op; });
  return static_cast<int>(after - batches.begin()) - 1;
}

/// A batch that waits for ever, and for what.
std::string SimMachine::describe(int rank, int batch) const {
  const RankLanes& lanes = lanes_[rank];
  const LaneBatch& stuck = lanes.batches[batch];
  const LaneOp& op = lanes.ops[stuck.first_op];
  std::string what = "compute";
  if (op.port >= 0) {
    const Port& port = lanes.ports[op.port];
    what = fmt::format("{} rank {} on lane {}", port.sends ? "send to" : "receive from", port.peer,
                       port.lane);
  }
  return fmt::format("rank {} op {} (step {}, {})", lanes.rank, op.op, stuck.step, what);
}

/// @throws PlanError if a batch has not started or a message has not arrived.
void SimMachine::check_complete() const {
  constexpr std::size_t kShown = 4;
  std::vector<std::string> stuck;
  int waiting = 0;  // Ops: each message of a group is one.
  // Posts without another end come first: they are the cause.
  for (const PostQueue& queue : queues_) {
    for (std::size_t p = queue.next; p < queue.posts.size(); ++p) {
      const auto [rank, op] = queue.posts[p];
      waiting += lanes_[rank].ops[op].count;
      stuck.push_back(describe(rank, batch_of(rank, op)) + " has no " +
                      (queue.sends ? "receive" : "send") + " to meet");
    }
  }
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    for (int lane = 0; lane < ranks_[rank].lane_count; ++lane) {
      const LaneState& state = ranks_[rank].lanes[lane];
      if (state.next < 0) continue;
      ++waiting;
      stuck.push_back(describe(rank, state.next) + " never starts");
    }
  }
  if (stuck.empty()) return;
  std::string text = fmt::format("simulate: {}: {} wait{} for ever after {:.6g} s: ", input_.name,
                                 count_of(waiting, "op"), waiting == 1 ? "s" : "", now_);
  for (std::size_t i = 0; i < std::min(kShown, stuck.size()); ++i) {
    text += (i == 0 ? "" : "; ") + stuck[i];
  }
  fail<PlanError>("{}{}", text, stuck.size() > kShown ? "; .." : "");
}

/// Live tiles over time: a tile lives from the start of the first op that touches it to the end of
/// the last.
void SimMachine::add_memory(int rank) {
  RankTimeline& timeline = timelines_[rank];
  std::map<double, std::int64_t> changes;
  for (const TileLife& tile : lanes_[rank].tiles) {
    double begin = std::numeric_limits<double>::infinity();
    double end = 0;
    for (const int op : tile.ops) {
      begin = std::min(begin, timeline.ops[op].start_s);
      end = std::max(end, timeline.ops[op].end_s);
    }
    changes[begin] += tile.bytes;
    changes[end] -= tile.bytes;
  }
  std::int64_t bytes = 0;
  std::int64_t peak = 0;
  for (const auto& [time, change] : changes) {
    if (change == 0) continue;
    bytes += change;
    peak = std::max(peak, bytes);
    timeline.memory.push_back({time, bytes});
  }
  timeline.peak_bytes = peak;
}

Timeline SimMachine::result() {
  Timeline timeline;
  timeline.cluster = input_.topology.cluster().name;
  timeline.world = input_.fold.world;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    SimRank& state = ranks_[r];
    account(state);
    RankTimeline& rank = timelines_[r];
    rank.compute_s = state.compute_s;
    rank.messages_s = state.messages_s;
    rank.exposed_s = state.exposed_s;
    rank.end_s = state.end_s;
    rank.idle_s = std::max(0.0, rank.end_s - rank.compute_s - rank.exposed_s);
    timeline.end_s = std::max(timeline.end_s, rank.end_s);
    if (input_.record.ops) add_memory(static_cast<int>(r));
    timeline.ranks.push_back(std::move(rank));
  }
  for (std::size_t c = 0; c < orbit_.size(); ++c) {
    const double bytes = network_.moved()[orbit_[c]];
    if (bytes == 0) continue;
    const Channel& channel = input_.topology.channels()[c];
    timeline.channels.push_back({.name = channel.name,
                                 .bytes_per_s = channel.bytes_per_s,
                                 .bytes = bytes,
                                 .busy_share = bytes / (channel.bytes_per_s * timeline.end_s)});
  }
  timeline.flows = std::move(flows_);
  timeline.flow_events = network_.events();
  return timeline;
}

}  // namespace armillary::sim
