#include "armillary/sim/trace.h"

#include <fmt/format.h>

#include <set>

#include "armillary/core/error.h"
#include "armillary/core/trace_events.h"

namespace armillary::sim {
namespace {

/// Name of an op in a trace: `attend`, `send k v to 3`.
std::string slice_name(const plan::RankProgram& program, const plan::Op& op) {
  std::string name(to_string(op.kind));
  if (!op.is_comm()) return name;
  for (const plan::View& view : op.views) {
    name += fmt::format(" {}", to_string(program.tiles[view.tile].tensor));
  }
  return name + fmt::format(" {} {}", op.kind == plan::OpKind::Send ? "to" : "from", op.peer);
}

void add_rank(const TracedPass& pass, std::size_t rank, double begin_s, TraceEvents& events) {
  const plan::RankProgram& program = pass.plan.ranks[rank];
  const RankTimeline& timeline = pass.timeline.ranks[rank];
  ARMILLARY_CHECK(timeline.ops.size() == program.ops.size());
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const plan::Op& op = program.ops[i];
    const OpTime& time = timeline.ops[i];
    events.add({.name = slice_name(program, op),
                .message = op.is_comm(),
                .rank = program.rank,
                .lane = op.lane,
                .start_s = begin_s + time.start_s,
                .end_s = begin_s + time.end_s,
                .arguments = {{"op", static_cast<std::int64_t>(i)}, {"step", op.step}}});
  }
  for (const MemoryUse& use : timeline.memory) {
    events.add_memory(program.rank, begin_s + use.time_s, use.bytes);
  }
}

}  // namespace

std::string to_trace(const std::vector<TracedPass>& passes) {
  TraceEvents events;
  double begin_s = 0;
  for (const TracedPass& pass : passes) {
    for (std::size_t rank = 0; rank < pass.plan.ranks.size(); ++rank) {
      const plan::RankProgram& program = pass.plan.ranks[rank];
      if (&pass == &passes.front()) {
        std::set<int> lanes;
        for (const plan::Op& op : program.ops) lanes.insert(op.lane);
        events.name_rank(program.rank, {lanes.begin(), lanes.end()});
      }
      add_rank(pass, rank, begin_s, events);
    }
    begin_s += pass.timeline.end_s;
  }
  return events.to_json();
}

}  // namespace armillary::sim
