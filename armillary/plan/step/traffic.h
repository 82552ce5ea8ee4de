// traffic.h: what the collectives of a training step move.
#pragma once

#include <cstdint>

#include "armillary/plan/step/shape.h"
#include "armillary/plan/step/words.h"

namespace armillary::plan::step {

/// Values that an op moves over the P ranks of its group. In each round a rank sends (P - 1) / P of
/// them, as a ring does.
struct StepTraffic {
  StepTensor tensor = StepTensor::Weight;  ///< The values of the op.
  std::int64_t values = 0;
  int rounds = 0;  ///< 2: a sum, then a gather of what is summed.
  int ranks = 1;
};

/// The traffic of an op of this program; no rounds for an op of one rank. Requires that its tiles
/// fit the tables.
StepTraffic traffic_of(const StepTables& tables, const RankProgram& program, const Op& op);

}  // namespace armillary::plan::step
