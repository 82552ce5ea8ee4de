// Work flows at rates that change when an op begins or ends: the next end of any op is the next
// event.
#include "armillary/predict/cost/step_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/trace_events.h"
#include "armillary/plan/program/hazards.h"
#include "armillary/plan/step/storage.h"
#include "armillary/plan/step/traffic.h"
#include "armillary/plan/step/words.h"

namespace armillary::cost {
namespace {

using plan::step::StepOp;
using plan::step::StepTensor;

/// The unit of an op, by the border that goes into it or by its first part; -1: none.
int unit_of(const plan::step::StepTables& tables, const plan::RankProgram& program,
            const plan::Op& op) {
  for (const plan::View& view : op.views) {
    const plan::TensorId tensor = program.tiles[view.tile].tensor;
    if (tensor == StepTensor::X && !(op.kind == StepOp::Loss)) return view.blocks.front();
  }
  for (const plan::View& view : op.views) {
    const auto& words = plan::step::step_words();
    if (words[program.tiles[view.tile].tensor].side != plan::step::kUnitSide) continue;
    return tables.parts()[view.blocks.front()].unit;
  }
  return -1;
}

/// The price of an op.
struct Price {
  double seconds = 0;
  double link_share = 0;  ///< A run's: part of the replicas' links that it fills.
};

class Prices {
 public:
  Prices(const plan::step::StepProgram& step, const plan::RankProgram& program,
         const StepMachine& machine)
      : tables_(step.tables), program_(program), machine_(machine) {
    const std::vector<plan::Rank> replicas = tables_.group(tables_.replica_axes(), program.rank);
    for (const std::vector<plan::Rank>& ranks : program.groups) {
      const auto members = static_cast<int>(ranks.size());
      const int stride = members == 1 ? 1 : (ranks.back() - ranks.front()) / (members - 1);
      groups_.push_back(group_of(machine.cluster, members, stride, machine.rates.part_node_links));
      groups_.back().bytes_per_s *= machine.rates.gradient_share;
      if (ranks == replicas) replicas_ = groups_.back();
    }
  }

  Price of(const plan::Op& op) const {
    switch (static_cast<StepOp>(op.kind.number())) {
      case StepOp::Forward:
        return run(op, unit(op).forward, unit(op).forward_link);
      case StepOp::Backward:
        return run(op, unit(op).backward, unit(op).backward_link);
      case StepOp::ForwardPlain:
        return run(unit(op).forward, unit(op).forward_link);
      case StepOp::BackwardPlain:
        return run(unit(op).backward, unit(op).backward_link);
      case StepOp::Update:
        return {.seconds = unit(op).update};
      case StepOp::Loss:     // In the time of the last unit.
      case StepOp::Release:  // Memory alone.
      case StepOp::Norm:     // In the traffic of the optimizer.
        return {};
      case StepOp::Gather:
      case StepOp::GatherInPlace:
      case StepOp::ReduceScatter:
      case StepOp::ReduceInPlace:
      case StepOp::AllReduce:
        return {.seconds = collective(op)};
      case StepOp::Move:
        return {.seconds = move(op)};
      default:
        fail<InvalidArgument>("simulate: op {} of a step has no price",
                              (*program_.words)[op.kind].name);
    }
  }

  /// Whether a collective shares links with the messages of the compute lane.
  bool beside_compute(const plan::Op& op) const { return group(op).shares_links(replicas_); }
  bool crosses_nodes(const plan::Op& op) const { return group(op).crosses_nodes; }

 private:
  const RankGroup& group(const plan::Op& op) const { return groups_.at(op.peer); }
  const UnitTime& unit(const plan::Op& op) const {
    return machine_.units.at(unit_of(tables_, program_, op));
  }

  static Price run(double seconds, double link) {
    return {.seconds = seconds, .link_share = seconds == 0 ? 0 : link / seconds};
  }
  /// A unit that uses the values of several runs as one op for each; the first takes the time.
  static Price run(const plan::Op& op, double seconds, double link) {
    return op.init[plan::step::kBorderSide] ? run(seconds, link) : Price{};
  }

  double collective(const plan::Op& op) const {
    const plan::step::StepTraffic traffic = traffic_of(tables_, program_, op);
    const double bytes = traffic.tensor == StepTensor::Weight ? machine_.rates.gathered_bytes
                         : traffic.tensor == StepTensor::Grad ? machine_.rates.gradient_bytes
                                                              : sizeof(double);
    return traffic.rounds * group(op).ring_seconds(bytes * static_cast<double>(traffic.values));
  }

  double move(const plan::Op& op) const {
    const sim::DeviceSpec& device = machine_.cluster.device;
    const auto bytes = static_cast<double>(
        bytes_of(tables_, program_.rank, program_.tiles[op.views.front().tile]));
    return device.host_bytes_per_s > 0 ? bytes / device.host_bytes_per_s
                                       : 2 * bytes / device.memory_bytes_per_s;
  }

  const plan::step::StepTables& tables_;
  const plan::RankProgram& program_;
  const StepMachine& machine_;
  std::vector<RankGroup> groups_;  ///< As in the program.
  RankGroup replicas_;
};

/// A gather of gradients ends their sum.
StepTransfer messages_of(const plan::RankProgram& program, const plan::Op& op) {
  if (op.kind == StepOp::Move) return StepTransfer::Moves;
  const bool of_values = program.tiles[op.views.front().tile].tensor == StepTensor::Weight;
  return of_values ? StepTransfer::Gathers : StepTransfer::Sums;
}

/// The lanes of one rank in time.
class StepLanes {
 public:
  StepLanes(const plan::RankProgram& program, const Prices& prices)
      : program_(program),
        prices_(prices),
        waits_(plan::dependencies(program)),
        is_done_(program.ops.size()) {
    timeline_.rank = program.rank;
    timeline_.ops.resize(program.ops.size());
    int computed = -1;
    int reduced = -1;  // The last all_reduce: a trainer comes to nothing else meanwhile.
    for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
      const auto lane = static_cast<std::size_t>(program.ops[i].lane);
      if (lane >= lanes_.size()) lanes_.resize(lane + 1);
      lanes_[lane].ops.push_back(i);
      // A trainer comes to a move when it has computed what is before it.
      if (lane == plan::kCompute) computed = i;
      if (program.ops[i].kind == StepOp::Move && computed >= 0) waits_[i].push_back(computed);
      if (reduced >= 0) waits_[i].push_back(reduced);
      if (program.ops[i].kind == StepOp::AllReduce) reduced = i;
    }
  }

  StepTimeline run() {
    while (true) {
      begin();
      if (std::ranges::none_of(lanes_, &StepLane::runs)) break;
      advance();
    }
    ARMILLARY_CHECK(std::ranges::count(is_done_, true) == std::ssize(is_done_));
    timeline_.end_s = now_;
    return timeline_;
  }

 private:
  struct StepLane {
    std::vector<int> ops;
    std::size_t next = 0;
    bool runs = false;
    double left = 0;  ///< Seconds of the op that runs, alone.
    double rate = 1;
    double link_share = 0;
  };

  int op_of(const StepLane& lane) const { return lane.ops[lane.next]; }

  /// Begins what can begin; ops that take no time end at once.
  void begin() {
    for (bool changed = true; std::exchange(changed, false);) {
      for (StepLane& lane : lanes_) {
        if (lane.runs || lane.next == lane.ops.size()) continue;
        const int op = op_of(lane);
        if (!std::ranges::all_of(waits_[op], [&](int other) { return is_done_[other]; })) continue;
        const Price price = prices_.of(program_.ops[op]);
        lane.left = price.seconds;
        lane.link_share = price.link_share;
        lane.runs = true;
        timeline_.ops[op].start_s = now_;
        if (lane.left == 0) end(lane);
        changed = true;
      }
    }
  }

  void end(StepLane& lane) {
    const int op = op_of(lane);
    timeline_.ops[op].end_s = now_;
    is_done_[op] = true;
    lane.runs = false;
    ++lane.next;
  }

  /// Rates of all ops that run.
  void share_links() {
    const StepLane& compute = lanes_[plan::kCompute];
    for (std::size_t l = 1; l < lanes_.size(); ++l) {
      if (!lanes_[l].runs) continue;
      const plan::Op& op = program_.ops[op_of(lanes_[l])];
      lanes_[l].rate = 1;
      if (op.kind == StepOp::Move) continue;
      int sharing = 0;
      for (std::size_t other = 1; other < lanes_.size(); ++other) {
        if (!lanes_[other].runs) continue;
        const plan::Op& beside = program_.ops[op_of(lanes_[other])];
        if (beside.kind == StepOp::Move) continue;
        sharing += prices_.crosses_nodes(beside) == prices_.crosses_nodes(op) ? 1 : 0;
      }
      const double taken =
          compute.runs && prices_.beside_compute(op) ? std::min(1.0, compute.link_share) : 0;
      lanes_[l].rate = (1 - taken) / sharing;
    }
  }

  /// Goes on to the end of the next op.
  void advance() {
    share_links();
    double seconds = std::numeric_limits<double>::infinity();
    for (const StepLane& lane : lanes_) {
      if (lane.runs && lane.rate > 0) seconds = std::min(seconds, lane.left / lane.rate);
    }
    ARMILLARY_CHECK(seconds < std::numeric_limits<double>::infinity());
    count(seconds);
    now_ += seconds;
    for (StepLane& lane : lanes_) {
      if (!lane.runs) continue;
      // Rounding alone leaves no work.
      const bool ends = lane.rate > 0 && lane.left / lane.rate <= seconds * (1 + 1e-9);
      lane.left -= lane.rate * seconds;
      if (ends) end(lane);
    }
  }

  /// Counts seconds in which nothing begins or ends.
  void count(double seconds) {
    const bool computes = lanes_[plan::kCompute].runs;
    if (computes) timeline_.compute_s += seconds;
    std::array<double, kStepTransfers> kinds{};
    for (std::size_t l = 1; l < lanes_.size(); ++l) {
      if (!lanes_[l].runs) continue;
      kinds[static_cast<std::size_t>(messages_of(program_, program_.ops[op_of(lanes_[l])]))] = 1;
    }
    const double present = std::accumulate(kinds.begin(), kinds.end(), 0.0);
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      if (kinds[k] == 0) continue;
      timeline_.busy_s[k] += seconds;
      if (!computes) timeline_.exposed_s[k] += seconds / present;
    }
  }

  const plan::RankProgram& program_;
  const Prices& prices_;
  std::vector<std::vector<int>> waits_;
  std::vector<StepLane> lanes_ = std::vector<StepLane>(1);  ///< The first computes.
  std::vector<bool> is_done_;
  double now_ = 0;
  StepTimeline timeline_;
};

}  // namespace

StepTimeline simulate(const plan::step::StepProgram& step, plan::Rank rank,
                      const StepMachine& machine) {
  const plan::step::StepShape& shape = step.tables.shape();
  if (std::ssize(machine.units) != step.tables.units()) {
    fail<InvalidArgument>("simulate: prices of {}; a step of {} needs as many",
                          count_of(std::ssize(machine.units), "unit"),
                          count_of(step.tables.units(), "unit"));
  }
  if (shape.mesh.ranks() > machine.cluster.devices()) {
    fail<InvalidArgument>("simulate: a step of {}; cluster {} has {}, as many are required",
                          count_of(shape.mesh.ranks(), "rank"), machine.cluster.name,
                          count_of(machine.cluster.devices(), "device"));
  }
  const plan::RankProgram& program = step.ranks.at(rank);
  const Prices prices(step, program, machine);
  return StepLanes(program, prices).run();
}

std::string to_trace(const plan::step::StepProgram& step,
                     const std::vector<StepTimeline>& timelines) {
  TraceEvents events;
  for (const StepTimeline& timeline : timelines) {
    const plan::RankProgram& program = step.ranks.at(timeline.rank);
    std::set<int> lanes;
    for (const plan::Op& op : program.ops) lanes.insert(op.lane);
    events.name_rank(timeline.rank, {lanes.begin(), lanes.end()});
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      const plan::Op& op = program.ops[i];
      const int unit = unit_of(step.tables, program, op);
      const std::string_view kind = (*program.words)[op.kind].name;
      const auto& units = step.tables.shape().units;
      events.add(
          {.name = unit < 0 ? std::string(kind) : fmt::format("{} {}", kind, units[unit].name),
           .message = op.lane != plan::kCompute,
           .rank = timeline.rank,
           .lane = op.lane,
           .start_s = timeline.ops[i].start_s,
           .end_s = timeline.ops[i].end_s,
           .arguments = {{"op", static_cast<std::int64_t>(i)}, {"step", op.step}}});
    }
  }
  return events.to_json();
}

}  // namespace armillary::cost
