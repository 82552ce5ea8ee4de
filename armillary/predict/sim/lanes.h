// lanes.h: the program of one rank as the engine reads it: batches in lanes, and who waits for
// whom. Internal to sim.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "armillary/plan/plan.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/sim/engine.h"

namespace armillary::sim {

/// One op, or several messages that are alike (LaneInput::group). Ops are sorted by batch, then in
/// program order.
struct LaneOp {
  double work = 0;         ///< Seconds of a compute op, bytes of a message.
  int op = 0;              ///< Index in the program, of the first message.
  int first_follower = 0;  ///< Its followers: batches that wait for this op.
  int end_follower = 0;
  int port = -1;  ///< Messages only: index into RankLanes::ports.
  int count = 1;  ///< Messages.
  bool zero_copy = false;
  plan::Kind kind{};
};

/// Ops that start together: one compute op, or the messages of one step of a lane. Batches are in
/// the order in which the program comes to them, so that what is near in time is near in memory.
struct LaneBatch {
  int first_op = 0;
  int end_op = 0;
  int waits = 0;  ///< Ops that must be complete before it starts, apart from the order of the lane.
  plan::Lane lane = plan::kCompute;
  int step = 0;
  int next = -1;  ///< Batch of the same lane that comes after it; -1: none.
};

/// One direction between a rank and a peer on a lane.
struct Port {
  plan::Rank peer = 0;
  plan::Lane lane = 0;
  bool sends = false;
  /// Digest of the groups of its messages, in their order; no part of operator<.
  std::uint64_t groups = 0;
  bool operator<(const Port& other) const {
    return std::tie(peer, lane, sends) < std::tie(other.peer, other.lane, other.sends);
  }
};

/// A tile in a slot that is not the caller's, for memory over time.
struct TileLife {
  std::int64_t bytes = 0;
  std::vector<int> ops;  ///< Indices in the program: all that touch the tile, ascending.
};

/// The program of one rank.
struct RankLanes {
  plan::Rank rank = 0;
  std::vector<LaneOp> ops;
  std::vector<LaneBatch> batches;
  std::vector<int> followers;
  std::vector<int> first_batch;  ///< By lane, lane 0 computes; -1: none.
  std::vector<Port> ports;
  std::vector<TileLife> tiles;  ///< If asked for.
  std::int64_t slot_bytes = 0;
  std::int64_t external_bytes = 0;
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
};

/// The program of a rank as an engine runs it. The marks of plan::zero_copy are left out where the
/// engine does not borrow memory, for they change nothing there.
plan::RankProgram lowered_program(const plan::Planner& planner, plan::Pass pass, plan::Rank rank,
                                  const Messages& engine);

/// The data that all ranks of a plan share.
struct LaneInput {
  const plan::Measures& measures;
  const Seconds& seconds;
  bool serial = true;  ///< Messages::serial of the cluster.
  bool tiles = false;  ///< Fill RankLanes::tiles.
  /// Messages of one batch from one rank to another that are alike become one op. They start and
  /// end together wherever the other end has the same groups.
  bool group = false;
};

/// Requires a `well_formed` program. Cost: O(ops * views) and one cost per compute op.
RankLanes make_lanes(const LaneInput& input, const plan::RankProgram& program);

}  // namespace armillary::sim
