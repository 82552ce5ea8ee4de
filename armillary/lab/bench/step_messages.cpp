// step_messages.cpp: the gathers and sums that a step's program names, on buffers of each unit; ops
// of other kinds are passed over.
#include "armillary/lab/bench/step_messages.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "armillary/comm/collectives.h"
#include "armillary/plan/step/traffic.h"
#include "armillary/plan/step/words.h"

namespace armillary::bench {
namespace {

using plan::step::StepOp;
using plan::step::StepTensor;

bool gathers(const plan::Op& op) {
  return op.kind == StepOp::Gather || op.kind == StepOp::GatherInPlace;
}
bool sums(const plan::Op& op) {
  return op.kind == StepOp::ReduceScatter || op.kind == StepOp::ReduceInPlace;
}

/// The unit whose values or gradients an op shows first.
std::size_t owner_of(const train::ProvedStep& step, const plan::Op& op) {
  const auto part = static_cast<std::size_t>(op.views.front().blocks.front());
  return static_cast<std::size_t>(step.tables.parts()[part].unit);
}

std::int64_t values_of(const train::ProvedStep& step, const plan::Op& op) {
  return plan::step::traffic_of(step.tables, step.program, op).values;
}

}  // namespace

StepValues step_values(const train::ProvedStep& step) {
  const std::vector<plan::Op>& ops = step.program.ops;
  const auto runs_unit = [](const plan::Op& op) { return op.kind == StepOp::Forward; };
  const auto first_run = std::ranges::find_if(ops, runs_unit);
  auto last_run = ops.begin();  // The last backward, which is that of the first unit.
  auto last_gather = ops.end();
  for (auto op = ops.begin(); op != ops.end(); ++op) {
    if (op->kind == StepOp::Backward) last_run = op;
    if (op->kind == StepOp::GatherInPlace) last_gather = op;
  }
  StepValues values;
  for (auto op = ops.begin(); op != ops.end(); ++op) {
    if (!gathers(*op) && !sums(*op)) continue;
    const std::int64_t count = values_of(step, *op);
    values.all += count;
    // Sums stand beside the run of the unit behind theirs, in its row.
    const bool is_lone =
        gathers(*op) ? op < first_run || op == last_gather : op->step >= last_run->step;
    if (is_lone) values.lone += count;
  }
  return values;
}

StepMessages::StepMessages(const train::ProvedStep& step, int rank, int world)
    : step_(step), units_(static_cast<std::size_t>(step.tables.units())) {
  for (const plan::Op& op : step.program.ops) {
    if (!gathers(op) && !sums(op)) continue;
    UnitMemory& unit = units_[owner_of(step, op)];
    const std::int64_t count = values_of(step, op);
    unit.counts.assign(static_cast<std::size_t>(world), count / world);
    unit.counts.back() += count % world;
    const auto all = static_cast<std::size_t>(count);
    const auto own = static_cast<std::size_t>(unit.counts[static_cast<std::size_t>(rank)]);
    (gathers(op) ? unit.values : unit.gradients).resize(all);
    (gathers(op) ? unit.own_values : unit.own_gradients).resize(own);
  }
}

void StepMessages::run(comm::Communicator& comm) {
  for (const plan::Op& op : step_.program.ops) run_op(comm, op);
  finish(comm, sum_);
  for (UnitMemory& unit : units_) finish(comm, unit.gather);
}

void StepMessages::run_op(comm::Communicator& comm, const plan::Op& op) {
  switch (static_cast<StepOp>(op.kind)) {
    case StepOp::Gather:
    case StepOp::GatherInPlace: {
      UnitMemory& unit = units_[owner_of(step_, op)];
      unit.gather = comm::start_all_gather(comm, comm::array(std::span(unit.own_values)),
                                           comm::array(std::span(unit.values)), unit.counts);
      return;
    }
    case StepOp::ReduceScatter:
    case StepOp::ReduceInPlace: {
      finish(comm, sum_);
      UnitMemory& unit = units_[owner_of(step_, op)];
      sum_ = comm::start_reduce_scatter(comm, comm::array(std::span(unit.gradients)),
                                        comm::array(std::span(unit.own_gradients)),
                                        comm::Reduction::Sum, unit.counts);
      return;
    }
    case StepOp::Forward:
    case StepOp::Backward:
      return finish(comm, units_[owner_of(step_, op)].gather);
    case StepOp::Release: {
      const auto tile = static_cast<std::size_t>(op.views.front().tile);
      const bool of_values = step_.program.tiles[tile].tensor == StepTensor::Weight;
      return finish(comm, of_values ? units_[owner_of(step_, op)].gather : sum_);
    }
    case StepOp::Norm:
      return finish(comm, sum_);
    default:
      return;
  }
}

void StepMessages::finish(comm::Communicator& comm, comm::Request& request) {
  comm.wait(request);
  request = {};
}

}  // namespace armillary::bench
