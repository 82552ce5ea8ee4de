// compact.h: the last step of a pass: removes tiles and slots that nothing uses any more, and gives
// the caller's tiles slots of their own.
#pragma once

#include "armillary/plan/plan.h"

namespace armillary::plan {

/// Keeps the tiles that an op or the caller uses, numbered again in the same order, and compacts
/// the slots.
void compact(const Problem& problem, const Blocks& blocks, RankProgram& program);

/// Keeps the slots that hold a tile, numbered again in the same order, each as large as its largest
/// tile.
void compact_slots(const Problem& problem, const Blocks& blocks, RankProgram& program);

/// Puts every saved tile that shares no slot with an input or output into a slot of the caller, one
/// of its own after all others, because the caller keeps these tiles; then compacts the slots.
void give_saved_slots(const Problem& problem, const Blocks& blocks, RankProgram& program);

}  // namespace armillary::plan
