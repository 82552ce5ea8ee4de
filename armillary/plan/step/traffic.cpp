#include "armillary/plan/step/traffic.h"

namespace armillary::plan::step {
namespace {

/// The view that shows all values of the group, and the rounds that move them.
struct Moves {
  std::size_t view = 0;
  int rounds = 0;
};

Moves moves_of(StepOp kind) {
  switch (kind) {
    case StepOp::Gather:
      return {GatherOperand::kAll, 1};
    case StepOp::ReduceScatter:
      return {ReduceScatterOperand::kAll, 1};
    case StepOp::GatherInPlace:
    case StepOp::ReduceInPlace:
      return {0, 1};
    case StepOp::AllReduce:
      return {0, 2};
    default:
      return {};
  }
}

}  // namespace

StepTraffic traffic_of(const StepTables& tables, const RankProgram& program, const Op& op) {
  const Moves moves = moves_of(static_cast<StepOp>(op.kind.number()));
  if (moves.rounds == 0) return {};
  const View& view = op.views[moves.view];
  const auto tensor = static_cast<StepTensor>(program.tiles[view.tile].tensor.number());
  StepTraffic traffic{.tensor = tensor,
                      .values = 0,
                      .rounds = moves.rounds,
                      .ranks = static_cast<int>(program.groups[op.peer].size())};
  if (tensor == StepTensor::Loss || tensor == StepTensor::Norm) {
    traffic.values = 1;
    return traffic;
  }
  for (const int part : view.blocks) {
    traffic.values += tables.values(part, program.rank, view.heads);
  }
  return traffic;
}

}  // namespace armillary::plan::step
