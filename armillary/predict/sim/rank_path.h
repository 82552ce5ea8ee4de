// rank_path.h: the time of one rank by itself, as if every peer were always ready.
//
// The ops of a rank wait for each other as in the engine (engine.h); a message takes its latency
// and its bytes over the narrowest link of its way. The longest chain of waits is found for two
// sets of links:
//
//   bound      links that carry nothing else: no simulated pass ends earlier
//   estimate   links that are shared as if every rank sent a message over the same distance now,
//              and compute that is slowed down for as long as messages take
//
// A path costs the program of one rank instead of all, and no events: a thousandth of a simulation
// at a thousand ranks. The tuner orders and drops its candidates by it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/sim/lanes.h"
#include "armillary/predict/sim/topology.h"

namespace armillary::sim {

/// One rank in one pass.
struct RankPath {
  double bound_s = 0;
  double estimate_s = 0;
  double compute_s = 0;  ///< Sum over the compute lane, at full speed.
  std::int64_t sent_bytes = 0;
  std::int64_t memory_bytes = 0;  ///< Slots and tensors of the caller.
  std::int64_t messages = 0;      ///< Sends.
};

/// Paths on one cluster. Keeps the load of links by distance between ranks, which all plans of a
/// world share. Not thread-safe.
class RankPaths {
 public:
  /// `placement` is the device of each rank. `topology` must outlive this object.
  RankPaths(const Topology& topology, std::vector<int> placement);

  /// Paths of some ranks, in their order. Programs are lowered as in simulate().
  /// @throws InvalidArgument for a dtype without a kernel curve.
  std::vector<RankPath> paths(const plan::Planner& planner, plan::Pass pass,
                              const std::vector<plan::Rank>& ranks);

 private:
  /// The way of one message: bytes that it adds to channels, and its own latency and limit.
  struct Way {
    const MessageRoute* route =
        nullptr;  ///< Null: between ranks that share memory, without a copy.
    const std::vector<int>* users = nullptr;  ///< Ranks that load each channel, by channel.
    double latency_s = 0;
    double flow_bytes_per_s = kNoCap;
    double bytes = 0;
    double burst_bytes = 0;  ///< Smallest bucket on the way, at most `bytes`.
  };
  RankPath path(const RankLanes& lanes);
  Way way(const RankLanes& lanes, const LaneOp& op);
  const std::vector<int>& users(int distance);
  class Chain;

  const Topology& topology_;
  std::vector<int> placement_;
  std::map<int, std::vector<int>> users_;  ///< By distance: ranks that load each channel.
};

}  // namespace armillary::sim
