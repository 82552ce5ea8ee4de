// visible_blocks.h: the blocks of two tiles that an attention of one with the other has to touch.
//
// Blocks that see nothing of the other tile are left out, so they cost no work.
#pragma once

#include "armillary/plan/strategies/axis.h"
#include "armillary/plan/strategies/grid.h"

namespace armillary::plan {

/// Blocks of a row tile and of a column tile that see a block of the other, ascending.
struct VisibleBlocks {
  BlockIds q_blocks;
  BlockIds kv_blocks;
};

/// A tile of the row and a tile of the column that are attended together.
struct ArrivedPair {
  const Arrived& row;
  const Arrived& column;
  /// Adds the blocks that lie in memory between the first and the last one that see something. One
  /// kernel call can then take them all; its mask hides the pairs that see nothing.
  bool in_one_call = false;
};

/// The blocks to attend; both lists are empty if nothing of the two tiles is visible. `builder`
/// holds the tiles. Cost: O(query blocks * key blocks).
VisibleBlocks visible_blocks(const Needs& needs, const ProgramBuilder& builder,
                             const ArrivedPair& pair);

}  // namespace armillary::plan
