// compact.h: the end of a pass: what nothing uses any more is left out.
#pragma once

#include "armillary/plan/plan.h"

namespace armillary::plan {

/// Leaves only tiles that an op or the caller uses, and slots that hold one, numbered again in the
/// same order; slots are as large as their largest tile.
void compact(const Problem& problem, const Blocks& blocks, RankProgram& program);

}  // namespace armillary::plan
