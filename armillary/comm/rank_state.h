// rank_state.h: the one object that a layer above keeps for a rank, in however many groups the rank
// is (runtime/rank.h).
//
//   group that was split first ----owns----> RankState <---- asked for by all groups made of it
//   group made by split() ends ---forget---> RankState
#pragma once

namespace armillary::comm {

class Communicator;

/// State of one rank (Communicator::rank_state). Threads: that of the rank.
class RankState {
 public:
  RankState() = default;
  RankState(const RankState&) = delete;
  RankState& operator=(const RankState&) = delete;
  virtual ~RankState() = default;

  /// A group that was made by split() ends: what was kept for it alone goes. `group` is on its way
  /// out, so only its address may be used.
  virtual void forget(const Communicator& group) noexcept = 0;
};

}  // namespace armillary::comm
