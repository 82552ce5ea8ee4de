// measured.h: a pass of a finished run, out of the flight files of its folder
// (host/recorder/reader.h).
//
// Flight files keep the last 1,000 ops of every rank with their times. Those of the last call that
// is there whole, on every rank, are laid beside the ops of the plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "armillary/host/recorder/reader.h"
#include "armillary/plan/plan.h"
#include "armillary/predict/sim/timeline.h"

namespace armillary::report {

/// Times of all ops of a pass, from the first op of any rank on.
struct MeasuredPass {
  std::string run;        ///< The folder.
  std::int64_t step = 0;  ///< The training step of the call; 0 outside of training.
  int call = 0;           ///< Its number in the step, from 1.
  double end_s = 0;       ///< The last op of any rank ends.
  std::vector<std::vector<sim::OpTime>> ranks;  ///< By rank and index of the op.
};

/// The run with those calls alone whose ops on rank 0 begin in [since_ns, until_ns) of its clock.
recorder::RecordedRun calls_between(recorder::RecordedRun run, std::int64_t since_ns,
                                    std::int64_t until_ns);

/// Whether the run has a call of the plan's pass with as many ops as the plan on every rank.
bool has_whole_call(const recorder::RecordedRun& recorded, const plan::Plan& plan);

/// The last whole call of the plan's pass. Clocks of several hosts are compared as the recorder
/// does (Flight::wall_ns).
/// @throws InvalidArgument if the run has another world than the plan, or no whole call of the pass
/// (names the reason), or if an op of it is not that of the plan (names rank and op, and both).
MeasuredPass measured_pass(const std::string& run, const recorder::RecordedRun& recorded,
                           const plan::Plan& plan);

}  // namespace armillary::report
