// lane_blocks.h: the lanes of a group that groups made of it have taken (split_communicator.h).
// Internal to comm.
#pragma once

#include <cstdint>
#include <set>

namespace armillary::comm {

/// Lanes of a block: those of a group, and behind them that of second phases
/// (started_collective.h).
constexpr int lanes_of_block(int lanes) {
  return lanes + 1;
}

/// Blocks of lanes that groups of this rank have: block b is lanes [b n, (b + 1) n), n =
/// lanes_of_block(), of the group that was split first, which keeps this object and has block 0
/// itself.
class LaneBlocks {
 public:
  static constexpr int kTold = 64;  ///< Blocks of which ranks tell each other one by one.

  /// The taken ones of the first kTold, a bit for each.
  std::uint64_t first() const;
  /// The block behind all that are taken.
  int end() const { return taken_.empty() ? 1 : *taken_.rbegin() + 1; }
  int count() const { return static_cast<int>(taken_.size()); }
  void take(int block) { taken_.insert(block); }
  void give_back(int block) { taken_.erase(block); }

 private:
  std::set<int> taken_;
};

}  // namespace armillary::comm
