// hazards.h: which ops of a rank wait for which, derived from the slots that they touch.
//
// Dependencies are never written by hand. They follow from the last writers and readers of every
// slot, as in the scoreboard of a processor. The verifier, the passes and the executor all use this
// one derivation.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "armillary/plan/program/program.h"

namespace armillary::plan {

/// True if the views share a head and a block. Both must be views of the same tile.
bool overlap(const View& a, const View& b);

/// For every op, the earlier ops of the rank that must be complete before it starts, ascending.
/// Waits that follow from other waits are left out if that is cheap. Two ops conflict if one of
/// them writes and they touch overlapping views of one tile, or different tiles of one slot.
/// Requires a program that passes the rule `well_formed` of check.h.
std::vector<std::vector<int>> dependencies(const RankProgram& program);

/// The same, op by op: `waits` is valid during the call only. For callers that need not keep them.
using Dependencies = std::function<void(int op, std::span<const int> waits)>;
void for_each_dependencies(const RankProgram& program, const Dependencies& visit);

/// The writes after an op, for a walk over a program from its last op to its first. Refers to
/// the program.
class LaterWrites {
 public:
  explicit LaterWrites(const RankProgram& program);
  /// Steps back over the op: what it writes counts from now on.
  void add(const Op& op);
  /// The next view that is written over a part of `view`, or in its slot as another tile; null if
  /// the view keeps its values to the end. Cost: O(writes of the slot), mostly one.
  const View* over(const View& view) const;

 private:
  const RankProgram& program_;
  std::vector<std::vector<const View*>> views_;  ///< By slot, the last one written first.
};

}  // namespace armillary::plan
