// trace.h: a timeline in the trace format of Chrome, which Perfetto and chrome://tracing read.
#pragma once

#include <string>
#include <vector>

#include "armillary/plan/plan.h"
#include "armillary/predict/sim/timeline.h"

namespace armillary::sim {

/// A timeline with the plan that it is about.
struct TracedPass {
  const plan::Plan& plan;
  const Timeline& timeline;
};

/// Passes one after the other as one JSON object. A rank is a process, a lane is a thread, an op is
/// a slice with its index, its step and, if it is a message, its bytes; live tiles of slots are a
/// counter. Times are microseconds. Requires timelines with
/// TimelineParts::ops, of all ranks of their plans.
std::string to_trace(const std::vector<TracedPass>& passes);

}  // namespace armillary::sim
