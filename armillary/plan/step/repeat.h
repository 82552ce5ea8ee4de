// repeat.h: a step of many microbatches as one of five. All between the second and the last do the
// same, each on its own borders:
//
//   microbatch   0      1      2      3     ..   m - 2    m - 1    end
//   is           0      1      2      2     ..   2        4        end
//
// The second is no repetition: its sums are the first that add to others. After microbatch 2 each
// slot has what that one, or one before, has left in it; so if it may run again after itself, as 3
// does, then it may run any number of times. Terms of a sum are told apart by microbatch alone, and
// each microbatch shows no borders but its own.
#pragma once

#include <optional>
#include <vector>

#include "armillary/plan/step/step_program.h"

namespace armillary::plan::step {

/// The microbatches that a proof needs.
inline constexpr int kProvedMicrobatches = 5;

/// The program of a rank with kProvedMicrobatches, or the place where it does not repeat.
struct FoldedProgram {
  RankProgram program;
  std::vector<int> ops;      ///< By op of `program`: its place in the whole program.
  std::optional<int> fault;  ///< The first op of a microbatch that is another; -1: tiles.
};

/// Leaves out microbatches that repeat, after it has compared every op of each of them. Any program
/// may be given. Requires more than kProvedMicrobatches. Cost: O(ops).
FoldedProgram without_repeats(const StepTables& tables, const RankProgram& program);

/// The row of the folded program that stands for a row of the whole one.
int folded_row(const StepTables& tables, int row);

}  // namespace armillary::plan::step
