// trace.cpp: slices of ops that are done; those that are not have no end. Times of all ranks are
// wall times, less the earliest of them.
#include "armillary/host/recorder/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "armillary/core/trace_events.h"

namespace armillary::recorder {
namespace {

/// Name of an op in a trace: `attend`, `send to 3`.
std::string slice_name(const RecordedOp& op) {
  if (!op.is_message()) return op.kind;
  return fmt::format("{} {} {}", op.kind, op.is_send() ? "to" : "from", op.op.peer);
}

std::int64_t first_start_ns(const RecordedRun& run) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const auto& flight : run.flights) {
    if (!flight) continue;
    for (const RecordedOp& op : flight->ops) {
      if (op.complete) first = std::min(first, flight->wall_ns(op.start_ns));
    }
  }
  return first;
}

}  // namespace

std::string to_trace(const RecordedRun& run) {
  const std::int64_t begin_ns = first_start_ns(run);
  TraceEvents events;
  for (const auto& flight : run.flights) {
    if (!flight) continue;
    std::set<int> lanes;
    for (const RecordedOp& op : flight->ops) lanes.insert(op.op.lane);
    events.name_rank(flight->rank, {lanes.begin(), lanes.end()});
    const auto seconds = [&](std::int64_t ns) {
      return static_cast<double>(flight->wall_ns(ns) - begin_ns) * 1e-9;
    };
    for (const RecordedOp& op : flight->ops) {
      if (!op.complete) continue;
      events.add({.name = slice_name(op),
                  .message = op.is_message(),
                  .rank = flight->rank,
                  .lane = op.op.lane,
                  .start_s = seconds(op.start_ns),
                  .end_s = seconds(op.end_ns),
                  .arguments = {{"op", op.op.index},
                                {"step", op.op.plan_step},
                                {"call", op.call},
                                {"training_step", op.step},
                                {"bytes", op.op.bytes}}});
    }
  }
  return events.to_json();
}

}  // namespace armillary::recorder
