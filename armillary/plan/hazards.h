// hazards.h: which ops of a rank wait for which, from the slots they touch.
//
// Derived, never written by hand: last writers and readers of every slot, as a processor does it.
// The verifier, the executor and (later) the simulator use this one answer.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "armillary/plan/plan.h"

namespace armillary::plan {

/// Do the views share a head and a block? Both must be of the same tile.
bool overlap(const View& a, const View& b);

/// For every op, the earlier ops of the rank that must be complete before it starts, ascending;
/// those that follow from others are left out where that is cheap. Two ops conflict if one of them
/// writes and they touch overlapping views of one tile, or different tiles of one slot. Requires a
/// program that passes the `form` rules of verify.h.
std::vector<std::vector<int>> dependencies(const RankProgram& program);

/// The same, one op after the other, for programs of which nobody keeps the answer.
using Dependencies = std::function<void(int op, std::span<const int> waits)>;
void for_each_dependencies(const RankProgram& program, const Dependencies& visit);

}  // namespace armillary::plan
