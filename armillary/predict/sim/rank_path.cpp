// rank_path.cpp: longest chains of waits. Batches are taken lane by lane as soon as everything that
// they wait for has a time.
#include "armillary/predict/sim/rank_path.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::sim {

/// The longest chain of one rank, with links that are shared or not.
class RankPaths::Chain {
 public:
  Chain(RankPaths& paths, const RankLanes& lanes, bool shared, double slowdown)
      : paths_(paths),
        lanes_(lanes),
        shared_(shared),
        slowdown_(slowdown),
        serial_(paths.topology_.cluster().messages.serial),
        ready_(lanes.batches.size()),
        waits_(lanes.batches.size()),
        next_(lanes.first_batch),
        free_(lanes.first_batch.size()) {
    for (std::size_t b = 0; b < lanes.batches.size(); ++b) waits_[b] = lanes.batches[b].waits;
  }

  /// Batches of a lane start in order; one that waits for another lane is tried again later.
  double end() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t lane = 0; lane < next_.size(); ++lane) {
        while (next_[lane] >= 0 && waits_[next_[lane]] == 0) {
          const int batch = std::exchange(next_[lane], lanes_.batches[next_[lane]].next);
          run(batch, free_[lane]);
          moved = true;
        }
      }
    }
    for (const int batch : next_) ARMILLARY_CHECK(batch < 0);
    return end_;
  }

  /// Seconds in which messages are under way, on the lane that has most of them.
  double messages_s() const { return messages_s_; }

 private:
  /// A part of the messages of a batch: all of it, or those that one batch waits for.
  struct BatchLoad {
    int follower = 0;
    int channel = 0;
    double seconds = 0;
    bool operator<(const BatchLoad& other) const {
      return std::tie(follower, channel, seconds) <
             std::tie(other.follower, other.channel, other.seconds);
    }
  };

  void run(int b, double& lane_free) {
    const LaneBatch& batch = lanes_.batches[b];
    const double start = std::max(ready_[b], lane_free);
    if (batch.lane != plan::kCompute) return run_messages(batch, start, lane_free);
    const LaneOp& op = lanes_.ops[batch.first_op];
    lane_free = start + op.work * slowdown_;
    finish(op, lane_free);
  }

  /// Each message ends no earlier than alone; those that share a channel no earlier than their sum.
  void run_messages(const LaneBatch& batch, double start, double& lane_free) {
    constexpr int kAll = -1;
    loads_.clear();
    double last = start;
    double least_latency = kNoCap;
    for (int o = batch.first_op; o < batch.end_op; ++o) {
      const LaneOp& op = lanes_.ops[o];
      const Way way = paths_.way(lanes_, op);
      // No message gains more than a full bucket; few gain that.
      const double bytes = shared_ ? way.bytes : way.bytes - way.burst_bytes;
      const double alone = start + way.latency_s + bytes / way.flow_bytes_per_s;
      least_latency = std::min(least_latency, way.latency_s);
      last = std::max(last, alone);
      if (way.route != nullptr) {
        for (const int channel : way.route->channels) {
          const double seconds = bytes * (shared_ ? (*way.users)[channel] : 1) /
                                 paths_.topology_.channels()[channel].bytes_per_s;
          loads_.push_back({kAll, channel, seconds});
          for (int f = op.first_follower; f < op.end_follower; ++f) {
            loads_.push_back({lanes_.followers[f], channel, seconds});
          }
        }
      }
      finish(op, alone);
    }
    // Loads of one follower and channel stand together; each adds up to one end.
    std::sort(loads_.begin(), loads_.end());
    for (std::size_t first = 0, i = 0; i < loads_.size(); ++i) {
      const bool same = loads_[i].follower == loads_[first].follower &&
                        loads_[i].channel == loads_[first].channel;
      if (!same) first = i;
      sum_ = first == i ? loads_[i].seconds : sum_ + loads_[i].seconds;
      const double end = start + least_latency + sum_;
      double& later = loads_[i].follower == kAll ? last : ready_[loads_[i].follower];
      later = std::max(later, end);
    }
    lane_free = serial_ ? last : start;
    end_ = std::max(end_, last);
    messages_s_ += last - start;
  }

  /// Notes the end of an op for all that wait for it.
  void finish(const LaneOp& op, double end) {
    end_ = std::max(end_, end);
    for (int f = op.first_follower; f < op.end_follower; ++f) {
      const int follower = lanes_.followers[f];
      ready_[follower] = std::max(ready_[follower], end);
      --waits_[follower];
    }
  }

  RankPaths& paths_;
  const RankLanes& lanes_;
  bool shared_;
  double slowdown_;
  bool serial_;
  std::vector<double> ready_;  ///< By batch.
  std::vector<int> waits_;     ///< By batch: ops without a time.
  std::vector<int> next_;      ///< By lane.
  std::vector<double> free_;   ///< By lane: the next batch may start.
  std::vector<BatchLoad> loads_;
  double sum_ = 0;
  double end_ = 0;
  double messages_s_ = 0;
};

RankPaths::RankPaths(const Topology& topology, std::vector<int> placement)
    : topology_(topology), placement_(std::move(placement)) {}

/// Number of ranks that load each channel if every rank sends to the rank so far behind it.
const std::vector<int>& RankPaths::users(int distance) {
  const int world = static_cast<int>(placement_.size());
  const auto [at, is_new] = users_.try_emplace((distance % world + world) % world);
  if (!is_new) return at->second;
  at->second.resize(topology_.channels().size());
  for (int from = 0; from < world; ++from) {
    const int to = (from + at->first) % world;
    if (from == to) continue;
    for (const int channel : topology_.route(placement_[from], placement_[to]).channels) {
      ++at->second[channel];
    }
  }
  return at->second;
}

RankPaths::Way RankPaths::way(const RankLanes& lanes, const LaneOp& op) {
  const Port& port = lanes.ports[op.port];
  const plan::Rank from = port.sends ? lanes.rank : port.peer;
  const plan::Rank to = port.sends ? port.peer : lanes.rank;
  Way way{.latency_s = topology_.cluster().messages.latency_s, .bytes = op.work};
  if (from == to) return way;
  const MessageRoute& route = topology_.route(placement_[from], placement_[to]);
  way.latency_s += route.latency_s;
  const bool near = topology_.node_of(placement_[from]) == topology_.node_of(placement_[to]);
  if (op.zero_copy && near && topology_.cluster().messages.zero_copy) {
    way.bytes = 0;
    return way;
  }
  way.route = &route;
  way.users = &users(to - from);
  way.flow_bytes_per_s = topology_.flow_limit(route, std::max(op.work, 1.0));
  double smallest = kNoCap;
  for (const int channel : route.channels) {
    const Channel& of_way = topology_.channels()[channel];
    way.flow_bytes_per_s = std::min(way.flow_bytes_per_s, of_way.bytes_per_s);
    const double bucket = topology_.cluster().links[of_way.rule].burst_bytes;
    if (bucket > 0) smallest = std::min(smallest, bucket);
  }
  if (smallest != kNoCap) way.burst_bytes = std::min(way.bytes, smallest);
  return way;
}

RankPath RankPaths::path(const RankLanes& lanes) {
  const std::vector<double>& slowdown = topology_.cluster().device.slowdown;
  RankPath path{.sent_bytes = lanes.sent_bytes,
                .memory_bytes = lanes.slot_bytes + lanes.external_bytes};
  for (const LaneOp& op : lanes.ops) {
    if (op.port < 0) path.compute_s += op.work;
    if (op.port >= 0 && lanes.ports[op.port].sends) ++path.messages;
  }
  const double least = std::min(1.0, *std::min_element(slowdown.begin(), slowdown.end()));
  path.bound_s = Chain(*this, lanes, false, least).end();
  // Compute is slowed down for the share of its time in which messages are under way.
  Chain full_speed(*this, lanes, true, 1);
  path.estimate_s = full_speed.end();
  const double both = std::min(full_speed.messages_s(), path.compute_s);
  const double slower = slowdown[std::min<std::size_t>(1, slowdown.size() - 1)];
  if (both > 0 && slower != 1) {
    const double factor = 1 + (slower - 1) * both / path.compute_s;
    path.estimate_s = Chain(*this, lanes, true, factor).end();
  }
  return path;
}

std::vector<RankPath> RankPaths::paths(const plan::Planner& planner, plan::Pass pass,
                                       const std::vector<plan::Rank>& ranks) {
  const Cluster& cluster = topology_.cluster();
  const plan::Problem& problem = planner.problem();
  const DeviceCosts costs(cluster.device, problem);
  const plan::Measures measures = measures_of(problem, planner.blocks());
  const WorkCounter work(problem, planner.blocks(), costs.needs_edges());
  const Seconds seconds = [&](const plan::RankProgram& program, const plan::Op& op) {
    return costs.seconds(work.of(program, op));
  };
  const LaneInput input{
      .measures = measures, .seconds = seconds, .serial = cluster.messages.serial};
  std::vector<RankPath> items;
  items.reserve(ranks.size());
  for (const plan::Rank rank : ranks) {
    items.push_back(
        path(make_lanes(input, lowered_program(planner, pass, rank, cluster.messages))));
  }
  return items;
}

}  // namespace armillary::sim
