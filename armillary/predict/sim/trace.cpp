// trace.cpp: passes stand one behind the other, each from the end of the one before.
#include "armillary/predict/sim/trace.h"

#include <fmt/format.h>

#include <map>
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
    const std::int64_t bytes =
        op.is_comm() ? bytes_of(pass.plan.problem, pass.plan.blocks, program, op) : 0;
    events.add(
        {.name = slice_name(program, op),
         .message = op.is_comm(),
         .rank = program.rank,
         .lane = op.lane,
         .start_s = begin_s + time.start_s,
         .end_s = begin_s + time.end_s,
         .arguments = {{"op", static_cast<std::int64_t>(i)}, {"step", op.step}, {"bytes", bytes}}});
  }
  for (const MemoryUse& use : timeline.memory) {
    events.add_memory(program.rank, begin_s + use.time_s, use.bytes);
  }
}

}  // namespace

std::string to_trace(const std::vector<TracedPass>& passes) {
  TraceEvents events;
  // A pass may have lanes that the others have not.
  std::map<plan::Rank, std::set<int>> lanes;
  for (const TracedPass& pass : passes) {
    for (const plan::RankProgram& program : pass.plan.ranks) {
      std::set<int>& of_rank = lanes[program.rank];
      for (const plan::Op& op : program.ops) of_rank.insert(op.lane);
    }
  }
  for (const auto& [rank, of_rank] : lanes) {
    events.name_rank(rank, {of_rank.begin(), of_rank.end()});
  }
  double begin_s = 0;
  for (const TracedPass& pass : passes) {
    for (std::size_t rank = 0; rank < pass.plan.ranks.size(); ++rank) {
      add_rank(pass, rank, begin_s, events);
    }
    begin_s += pass.timeline.end_s;
  }
  return events.to_json();
}

}  // namespace armillary::sim
