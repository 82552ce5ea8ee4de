// each_rank.h: the programs of a plan are made and read independently of each other, so on all
// cores.
#pragma once

#include <functional>

#include "armillary/plan/problem.h"

namespace armillary::plan {

/// Calls `work` once for every rank of the world, on as many threads as there are cores and can be
/// had; for few ranks on the calling one alone, where starting threads would take longer than what
/// they do.
/// Returns when all calls have. If some throw, throws what that of the lowest rank did: the same
/// for any number of threads. `work` writes only what belongs to its rank.
void for_each_rank(int world, const std::function<void(Rank rank)>& work);

}  // namespace armillary::plan
