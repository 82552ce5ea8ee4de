// step_program.h: a training step as the programs of all ranks, in a static order. Nothing is
// decided later: what check_step.h proves is what a trainer does, op after op.
//
//   for each microbatch   forward of units 0, 1, .., loss, backward of units .., 1, 0
//   then                  sums that are left; the norm; updates; stages 1 and 2: gathers of values
//
// A unit's run is a row of the grid. Beside unit i stand, each on a lane of its own:
//
//   lane 1   stage 3: gather of the unit that runs next; a unit is released behind its run if the
//            next run does not use it (without reshard_after_forward: behind its backward). Three
//            stay: the last layer over the head, the first layer over the embedding from one
//            microbatch to the next, and values that a later unit uses too until the end of
//            forward. Stage 0: gather of the gradients that the row before has summed
//   lane 2   the sum of the gradients that the run before has completed: over tp, once for Shared
//            and once for Summed values of the unit, for which the run waits; then over the
//            replicas
//   lane 3   state on the host: beside the update of unit i the move back of unit i - 1, then the
//            fetch of unit i + 1 into the buffer that is free; the first beside the sum of the norm
//
//   stage 0      as stage 1, and beside the run after that all replicas gather the sums in place
//   stage 1      reduce_scatter in place, once, in the last microbatch
//   stage 2, 3   reduce_scatter in every microbatch, added to the shard; the whole gradient is
//                released behind the next run of backward, or behind all of forward
//
// Values that several units use (a tied embedding) are summed once, after the last of them. Shards
// are summed over copies at the end. The norm counts what several ranks of tp have on the first of
// them; it is summed over the replicas, then over tp. Replicas of a unit of experts are others,
// along tp too (shape.h), and with such units the norm of stage 0 is summed over the larger of tp
// and ep.
#pragma once

#include <vector>

#include "armillary/plan/program/measures.h"
#include "armillary/plan/step/shape.h"

namespace armillary::plan::step {

struct StepProgram {
  StepTables tables;
  Measures measures;
  std::vector<RankProgram> ranks;

  /// Refers to this object.
  World world() const { return {measures, ranks}; }
};

/// The program of one rank. `measures` are step_measures(tables).
RankProgram rank_program(const StepTables& tables, const Measures& measures, Rank rank);

/// The programs of all ranks: the same ops in the same order, but for their views and for units of
/// which a rank of tp counts nothing in the norm.
/// @throws InvalidArgument as check_shape().
StepProgram build_step(const StepShape& shape);

}  // namespace armillary::plan::step
