// parallel_for_ranks.h: a loop over ranks on all cores. The programs of a plan are made and read
// independently of each other.
#pragma once

#include <functional>

#include "armillary/plan/problem.h"

namespace armillary::plan {

/// Calls `work` once for every rank in [0, world) and returns when all calls have returned. Uses at
/// most one thread per core, and the calling thread alone for a small world, where starting threads
/// would take longer than the work. `work` must write only data of its own rank.
/// @throws the exception of the lowest rank whose call threw, for any number of threads.
void parallel_for_ranks(int world, const std::function<void(Rank rank)>& work);

}  // namespace armillary::plan
