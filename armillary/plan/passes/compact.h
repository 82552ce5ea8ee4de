// compact.h: the last step of a pass: removes tiles and slots that nothing uses any more.
#pragma once

#include "armillary/plan/plan.h"

namespace armillary::plan {

/// Keeps the tiles that an op or the caller uses, numbered again in the same order, and compacts
/// the slots.
void compact(const Problem& problem, const Blocks& blocks, RankProgram& program);

/// Keeps the slots that hold a tile, numbered again in the same order, each as large as its largest
/// tile.
void compact_slots(const Problem& problem, const Blocks& blocks, RankProgram& program);

}  // namespace armillary::plan
