#include "armillary/sim/trace.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "armillary/core/error.h"

namespace armillary::sim {
namespace {

using Json = nlohmann::ordered_json;
constexpr double kMicrosecond = 1e-6;

/// Name of an op in a trace: `attend`, `send k v to 3`.
std::string slice_name(const plan::RankProgram& program, const plan::Op& op) {
  std::string name(to_string(op.kind));
  if (!op.is_comm()) return name;
  for (const plan::View& view : op.views) {
    name += fmt::format(" {}", to_string(program.tiles[view.tile].tensor));
  }
  return name + fmt::format(" {} {}", op.kind == plan::OpKind::Send ? "to" : "from", op.peer);
}

/// Names of a rank and its lanes, as metadata of a trace.
void add_names(const plan::RankProgram& program, Json& events) {
  const auto metadata = [&](const char* what, int lane, const std::string& name) {
    events.push_back({{"ph", "M"},
                      {"name", what},
                      {"pid", program.rank},
                      {"tid", lane},
                      {"args", {{"name", name}}}});
  };
  metadata("process_name", 0, fmt::format("rank {}", program.rank));
  std::set<plan::Lane> lanes;
  for (const plan::Op& op : program.ops) lanes.insert(op.lane);
  for (const plan::Lane lane : lanes) {
    metadata("thread_name", lane,
             lane == plan::kCompute ? "compute" : fmt::format("messages {}", lane));
  }
}

void add_rank(const TracedPass& pass, std::size_t rank, double begin_s, Json& events) {
  const plan::RankProgram& program = pass.plan.ranks[rank];
  const RankTimeline& timeline = pass.timeline.ranks[rank];
  ARMILLARY_CHECK(timeline.ops.size() == program.ops.size());
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const plan::Op& op = program.ops[i];
    const OpTime& time = timeline.ops[i];
    events.push_back({{"ph", "X"},
                      {"name", slice_name(program, op)},
                      {"cat", op.is_comm() ? "message" : "compute"},
                      {"pid", program.rank},
                      {"tid", op.lane},
                      {"ts", (begin_s + time.start_s) / kMicrosecond},
                      {"dur", (time.end_s - time.start_s) / kMicrosecond},
                      {"args", {{"op", i}, {"step", op.step}}}});
  }
  for (const MemoryUse& use : timeline.memory) {
    events.push_back({{"ph", "C"},
                      {"name", "slots"},
                      {"pid", program.rank},
                      {"ts", (begin_s + use.time_s) / kMicrosecond},
                      {"args", {{"bytes", use.bytes}}}});
  }
}

}  // namespace

std::string to_trace(const std::vector<TracedPass>& passes) {
  Json events = Json::array();
  double begin_s = 0;
  for (const TracedPass& pass : passes) {
    for (std::size_t rank = 0; rank < pass.plan.ranks.size(); ++rank) {
      if (&pass == &passes.front()) add_names(pass.plan.ranks[rank], events);
      add_rank(pass, rank, begin_s, events);
    }
    begin_s += pass.timeline.end_s;
  }
  return Json{{"displayTimeUnit", "ms"}, {"traceEvents", events}}.dump();
}

}  // namespace armillary::sim
