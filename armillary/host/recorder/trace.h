// trace.h: the ops of a finished run in the trace format of Chrome, in the form of simulated runs
// (core/trace_events.h).
#pragma once

#include <string>

#include "armillary/host/recorder/reader.h"

namespace armillary::recorder {

/// The ops of all ranks that are done, as far as flight files keep them. Time zero is the first of
/// them; clocks of several hosts are compared as Flight::wall_ns does.
std::string to_trace(const RecordedRun& run);

}  // namespace armillary::recorder
