// check_step.h: proves that the programs of a training step compute its gradients, its norm and its
// update, or says where they do not.
//
// The programs are run on types. A cell (the own shard of a part, or its other shards) holds terms:
// of a gradient one for each microbatch and unit that uses the values, each with the axes along
// which it is still partial (types.h). Rules proved, by name:
//
//   well_formed, zero_copy, match, order   those of the machine (plan/program/check.h): no hazard,
//              no deadlock
//   lanes      ranks of a group come to its joint ops in one order, also where lanes differ: all of
//              them go over one communicator
//   caller     inputs and outputs are those of the shape (storage.h), and lie where they should
//   bytes      what rests on a rank is what its stage of ZeRO says, to the byte
//   shards     ops show whole units or the rank's own shard; collectives of shards go over the
//              replicas
//   border     a unit runs on what the unit before it gives, with values that it uses
//   undefined  no op reads what was never written, was released, or was replaced in its slot; each
//              unit is gathered before it runs, with the values from before the update
//   freed      transient tiles are released, once, before another takes their slot
//   host       state on the host is fetched before its update and moved back after it, once; an
//              update takes its buffer, and nothing else takes, fills or frees that meanwhile
//   early      no gradient is summed before its last contribution: of the microbatch in a
//              reduce_scatter, of the step otherwise; none is gathered before its sum, no value
//              before its update
//   axes       a sum goes over axes along which all of its terms are still partial
//   twice      nothing is added, counted or updated twice; the norm has each shard once
//   partial    an op that is not linear reads complete values: all terms, summed
//              over all their axes
//   complete   at the end all values are updated, and gathered again in stages 1
//              and 2; loss and norm are those of the whole step
#pragma once

#include <vector>

#include "armillary/plan/program/diagnostics.h"
#include "armillary/plan/program/measures.h"
#include "armillary/plan/step/shape.h"

namespace armillary::plan::step {

/// An empty result means that the programs are a step of this shape; otherwise the first cause.
/// Any programs may be given; `world` has the measures of step_measures().
/// @throws InvalidArgument as check_shape(). Cost: O(ops * parts of a unit * terms).
std::vector<Diagnostic> check_step(const World& world, const StepShape& shape, int limit = 20);

}  // namespace armillary::plan::step
