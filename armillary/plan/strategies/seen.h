// seen.h: of two tiles that meet, the blocks that are attended.
#pragma once

#include "armillary/plan/strategies/axis.h"
#include "armillary/plan/strategies/grid.h"

namespace armillary::plan {

/// Of a tile of the row and one of the column, the blocks that see one of the other.
struct Seen {
  BlockIds q_blocks;
  BlockIds kv_blocks;
};

/// Tiles of a row and a column that meet.
struct Meeting {
  const Held& row;
  const Held& column;
  /// Also what lies in memory between the first and the last block that sees something: one kernel
  /// call takes it all, and finds in the mask what sees nothing.
  bool in_one_call = false;
};

Seen seen(const Needs& needs, const ProgramBuilder& builder, const Meeting& meeting);

}  // namespace armillary::plan
