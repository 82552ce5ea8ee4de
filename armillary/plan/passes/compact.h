// compact.h: the last step of a pass: removes tiles and slots that nothing uses any more.
#pragma once

#include "armillary/plan/plan.h"

namespace armillary::plan {

/// Keeps the tiles that an op or the caller uses and the slots that hold one of them, numbers both
/// again in the same order, and makes every slot as large as its largest tile.
void compact(const Problem& problem, const Blocks& blocks, RankProgram& program);

}  // namespace armillary::plan
