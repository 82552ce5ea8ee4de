// text.h: a step to read: a table of the parts with their types along the mesh, then the grid of
// the programs (plan/program/grid.h), with the place of a fault marked.
//
//   part  unit           values  gradient
//   0     embedding          60  dp, cp partial
//   1     layer0             80  dp, cp partial; tp sharded
//   borders: dp, cp sharded; bytes of rank 0 at rest: 1120
//
//            rank 0                              rank 1
//   step 0   gather(weight0 over r{0,1})         gather(weight0 over r{0,1})
//            forward(weight0 x0)                 forward(weight0 x0)   <-- HERE rank 1: reads ..
#pragma once

#include <string>

#include "armillary/plan/program/diagnostics.h"
#include "armillary/plan/program/measures.h"
#include "armillary/plan/step/shape.h"

namespace armillary::plan::step {

/// The table and the grid. Requires programs in the words of a step; any other fault prints.
std::string to_grid(const World& world, const StepShape& shape, const Diagnostic* at = nullptr);

/// The lines of the grid around the place of a fault; all of them if it marks no place.
std::string grid_around(const World& world, const StepShape& shape, const Diagnostic& fault);

}  // namespace armillary::plan::step
