// visibility.h: which blocks see each other, and which groups of blocks need a block.
//
// Blocks that are one interval each, as in all layouts but `striped`, are numbered by position: the
// blocks that one block sees are then a few runs of these numbers, found by closed forms of the
// mask. So a world of 16,384 ranks needs no table of its 2^30 pairs of blocks. With stripes there
// is one bit for each pair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "armillary/plan/blocks.h"
#include "armillary/plan/degrees.h"
#include "armillary/plan/program/block_ids.h"

namespace armillary::plan {

/// Tells which blocks have a visible pair of tokens. Immutable; threads may share it.
class Visibility {
 public:
  /// Cost: O(blocks * (log blocks + bands near a block)) for blocks of one interval; otherwise a
  /// count of pairs for every two blocks, on all cores. Keeps no reference.
  /// @throws InvalidArgument for more than 2^30 pairs of blocks that are not intervals.
  Visibility(const Mask& mask, const Blocks& blocks);

  /// True if the mask shows any pair of tokens of the two blocks.
  bool visible(int q_block, int kv_block) const {
    if (by_position_) return holds(q_.visible[q_block], kv_.place[kv_block]);
    const std::size_t pair = static_cast<std::size_t>(q_block) * kv_.count + kv_block;
    return (bits_[pair / 64] >> (pair % 64) & 1) != 0;
  }

  /// True if every two blocks see each other.
  bool complete() const;

  /// Number of blocks of a side.
  std::size_t count(MaskSide side) const { return of(side).count; }
  /// True if the blocks of both sides are intervals, so that the next two functions may be called.
  bool by_position() const { return by_position_; }
  /// The blocks of a side in order of position.
  const std::vector<int>& ordered(MaskSide side) const { return of(side).order; }
  /// The blocks of the other side that a block sees, as ascending runs of indices into `ordered`.
  std::span<const IdRun> visible_blocks(MaskSide side, int block) const {
    return of(side).visible[block].runs();
  }

 private:
  /// The blocks of one side. The lists are empty unless the blocks are intervals.
  struct SideBlocks {
    std::size_t count = 0;
    std::vector<int> order;         ///< Blocks by position.
    std::vector<int> place;         ///< Index of each block in `order`.
    std::vector<BlockIds> visible;  ///< Places of the blocks of the other side that it sees.
  };
  const SideBlocks& of(MaskSide side) const { return side == MaskSide::Queries ? q_ : kv_; }
  static bool holds(const BlockIds& places, int place);
  void sort_by_position(const Blocks& blocks);
  void find_seen(const Mask& mask, const Blocks& blocks);
  void count_pairs(const Mask& mask, const Blocks& blocks);

  bool by_position_ = false;
  SideBlocks q_;
  SideBlocks kv_;
  std::vector<std::uint64_t> bits_;  ///< By query block, then key block; empty if by position.
};

/// Blocks of one side, and groups of the blocks of the other.
struct BlockUsersOptions {
  MaskSide side = MaskSide::Keys;  ///< The side whose blocks are needed.
  /// Group of each block of the other side, in [0, groups).
  std::vector<int> group_of{};
  int groups = 0;
};

/// For each block of one side, the groups of the other side's blocks that see it: the rows, columns
/// or teams that need the block. Blocks with the same groups share one list.
class BlockUsers {
 public:
  /// Cost: O(blocks) and the runs of each list for masks whose edges move with the position, such
  /// as causal; at most O(pairs of blocks).
  BlockUsers(const Visibility& visibility, const BlockUsersOptions& options);

  /// The groups that need the block, ascending.
  const BlockIds& of(int block) const { return sets_[set_of_[block]]; }
  /// True if the group needs the block.
  bool needs(int group, int block) const { return holds(of(block), group); }

  /// True if an ascending list has the id. Cost: O(log runs).
  static bool holds(const BlockIds& ids, int id);

 private:
  std::vector<BlockIds> sets_;
  std::vector<int> set_of_;  ///< By block: index into sets_.
};

}  // namespace armillary::plan
