// alike.h: proves a large mesh by a small one. The ranks behind the first of an axis all do the
// same, and a proof tells shards apart only as a rank's own and those of others (check_step.h). So
// it is enough to prove two ranks along each axis, and that each rank does what one of them does.
// Many microbatches are proved by five in the same way (repeat.h).
#pragma once

#include <optional>
#include <vector>

#include "armillary/plan/program/diagnostics.h"
#include "armillary/plan/step/step_program.h"

namespace armillary::plan::step {

/// The same step with at most two ranks along each axis, 32 at most, 64 with experts, and with at
/// most kProvedMicrobatches if the programs of build_step() repeat. A mesh that is as small keeps
/// its own shards.
StepShape smallest_alike(const StepShape& shape);

/// The rank of the small mesh that does what a rank does: the first or the second of each axis.
Rank rank_alike(const StepTables& tables, Rank rank, const StepTables& small);

/// A program, with the tables that it was made of.
struct TabledProgram {
  const StepTables& tables;
  const RankProgram& program;
};

/// The first op in which a program differs from its model, but for shards and ranks, or -1 if its
/// tiles or groups differ. Nothing: it does what the model does, also where that has fewer
/// microbatches. Cost: O(ops + ranks of its groups).
std::optional<int> first_difference(const TabledProgram& own, const TabledProgram& model);

/// check_step() of a small step, and what its repetitions need besides: ranks of a group come to
/// the same joint ops in each microbatch.
std::vector<Diagnostic> check_small(const StepProgram& small, int limit = 20);

}  // namespace armillary::plan::step
