// lane_blocks.h: the lanes of a group that groups made of it have taken (split_communicator.h).
// Internal to comm.
#pragma once

#include <cstdint>
#include <set>

namespace armillary::comm {

/// Blocks of lanes that groups of this rank have: block b is lanes [b lanes(), (b + 1) lanes()) of
/// the group that was split first, which keeps this object and has block 0 itself.
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
