// parallel_for_ranks.h: a loop over ranks on all cores. The programs of a plan are made and read
// independently of each other.
#pragma once

#include <functional>

#include "armillary/core/parallel_for.h"
#include "armillary/plan/program/program.h"

namespace armillary::plan {

/// parallel_for() over the ranks of a world: starting a thread takes about as long as the work on
/// some small programs.
inline void parallel_for_ranks(int world, const std::function<void(Rank rank)>& work) {
  constexpr int kRanksPerThread = 8;
  parallel_for(world, work, kRanksPerThread);
}

}  // namespace armillary::plan
