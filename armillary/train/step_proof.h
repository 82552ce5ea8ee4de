// step_proof.h: the program of a rank's training steps, proved with those of all ranks before a run
// moves data.
//
//   StepShape --> own program ----------------------------. same ops (plan/step/alike.h)?
//            '--> programs of a small mesh, proved: rank 0 '--> go, or PlanError on all ranks
#pragma once

#include <functional>

#include "armillary/comm/communicator.h"
#include "armillary/plan/step/shape.h"

namespace armillary::train {

/// The program of a rank in each step, with the tables of its shape.
struct ProvedStep {
  plan::step::StepTables tables;
  plan::RankProgram program;
};

/// Sees the program of this rank before it is proved. One that it changes is refused.
using SeeProgram = std::function<void(plan::RankProgram& program)>;

/// Makes the program of this rank, and has it proved with those of all ranks. `world` has the ranks
/// of the mesh. Collective. Cost: O(ops of a rank) on each rank, and on rank 0 the proof of at most
/// 32 of them in 5 microbatches, if the others repeat these, as those of build_step() do: it grows
/// neither with the world nor with microbatches.
/// @throws on every rank PlanError with the rule that is broken, the grid around the op and
/// `<-- HERE`; InvalidArgument if the shapes of two ranks differ, or as check_shape().
ProvedStep proved_step(comm::Communicator& world, const plan::step::StepShape& shape,
                       const SeeProgram& see = {});

}  // namespace armillary::train
