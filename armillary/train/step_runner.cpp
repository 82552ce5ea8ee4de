// The dispatcher. A unit that uses the values of several has an op for each, of which the first
// begins its run. Sums of gradients are waited for where the program says that something reads
// them: at a release, at the next op of their lane, at the norm.
#include "armillary/train/step_runner.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/plan/step/words.h"

namespace armillary::train {

using plan::step::StepOp;
using plan::step::StepTensor;

StepRunner::StepRunner(const StepParts& parts, const ProvedStep& step, StepTask task)
    : parts_(parts), step_(step), task_(std::move(task)) {
  const std::vector<Op>& ops = step.program.ops;
  const auto ends_gradients = [&](const Op& op) {
    return op.kind == StepOp::Norm ||
           (op.kind == StepOp::AllReduce && tensor_of(op) == StepTensor::Loss);
  };
  norm_ = static_cast<std::size_t>(std::ranges::find_if(ops, ends_gradients) - ops.begin());
  const auto updates = [](const Op& op) { return op.kind == StepOp::Update; };
  update_ = static_cast<std::size_t>(std::ranges::find_if(ops, updates) - ops.begin());
  for (const plan::Tile& tile : step.program.tiles) {
    if (!(tile.tensor == StepTensor::Buffer)) continue;
    if (std::ranges::count(buffers_, tile.slot) == 0) buffers_.push_back(tile.slot);
  }
}

double StepRunner::run_gradients() {
  parts_.store.zero_gradients();
  run_ops(0, norm_);
  parts_.store.finish_sum();
  return loss_;
}

void StepRunner::run_norm() {
  run_ops(norm_, update_);
}

void StepRunner::run_update() {
  run_ops(update_, step_.program.ops.size());
  parts_.store.finish_gathers();
  parts_.store.finish_moves();
}

void StepRunner::run_ops(std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) run_op(step_.program.ops[i]);
}

plan::TensorId StepRunner::tensor_of(const Op& op) const {
  return step_.program.tiles[static_cast<std::size_t>(op.views.front().tile)].tensor;
}

/// The unit whose values or gradients an op shows first.
int StepRunner::owner_of(const Op& op) const {
  return step_.tables.parts()[static_cast<std::size_t>(op.views.front().blocks.front())].unit;
}

void StepRunner::run_op(const Op& op) {
  Store& store = parts_.store;
  switch (static_cast<StepOp>(op.kind)) {
    case StepOp::Gather:
      return store.gather(owner_of(op));
    case StepOp::GatherInPlace:
      return store.start_gather_values(owner_of(op));
    case StepOp::Forward:
      if (op.init[plan::step::kBorderSide]) {
        run_forward(op.views[plan::step::ForwardOperand::kX]);
      }
      return;
    case StepOp::ForwardPlain:
      return run_forward(op.views[plan::step::ForwardPlainOperand::kX]);
    case StepOp::Loss:
      return run_loss();
    case StepOp::Backward:
      if (op.init[plan::step::kBorderSide]) {
        run_backward(op.views[plan::step::BackwardOperand::kX]);
      }
      return;
    case StepOp::BackwardPlain:
      return run_backward(op.views[plan::step::BackwardPlainOperand::kX]);
    case StepOp::Release:
      return run_release(op);
    case StepOp::AllReduce:
      return run_all_reduce(op);
    case StepOp::ReduceScatter:
    case StepOp::ReduceInPlace:
      return store.start_sum(owner_of(op));
    case StepOp::Norm:
      return parts_.optimizer.add_squares(owner_of(op));
    case StepOp::Update:
      return run_update_of(op);
    case StepOp::Move:
      return run_move(op);
    case StepOp::Send:
    case StepOp::Recv:
      break;
  }
  ARMILLARY_CHECK(false);  // the proof refuses messages
}

void StepRunner::run_forward(const plan::View& x) {
  const int unit = x.blocks.front();
  parts_.recording.set_activity({.name = "forward and backward"});
  if (unit == 0) inputs_ = task_.inputs(x.heads.begin);
  const model::Weights weights = parts_.store.use(unit);
  UnitPass pass;
  // Each unit has a graph of its own, so its weights are needed in its own backward alone.
  if (unit > 0) pass.in = passes_.back().out.detach().requires_grad_(true);
  pass.out = parts_.model.run(unit, weights, pass.in, *inputs_);
  passes_.push_back(std::move(pass));
}

void StepRunner::run_loss() {
  const at::Tensor& loss = passes_.back().out;
  loss_ += loss.item().toDouble() / task_.targets;
  grad_ = at::ones_like(loss) / task_.targets;
}

void StepRunner::run_backward(const plan::View& x) {
  Store& store = parts_.store;
  const int unit = x.blocks.front();
  parts_.recording.set_activity({.name = "forward and backward"});
  const UnitPass pass = std::move(passes_.back());
  passes_.pop_back();
  store.begin_backward(unit);
  store.use(unit);
  // A unit that uses neither weights nor its input has no graph; the loss must have one.
  const bool is_loss = unit + 1 == store.units();
  if (grad_.defined() && (is_loss || pass.out.requires_grad())) {
    torch::autograd::backward({pass.out}, {grad_});
  }
  if (task_.not_finite != nullptr && task_.not_finite->empty()) {
    *task_.not_finite = store.not_finite(unit);
  }
  grad_ = pass.in.defined() ? pass.in.grad() : at::Tensor();
  if (unit > 0) return;
  store.check_views();
  inputs_.reset();
}

void StepRunner::run_release(const Op& op) {
  if (tensor_of(op) == StepTensor::Weight) return parts_.store.drop_values(owner_of(op));
  parts_.store.finish_sum();
}

const plan::Tile& StepRunner::tile_of(const plan::View& view) const {
  return step_.program.tiles[static_cast<std::size_t>(view.tile)];
}

int StepRunner::buffer_of(const plan::View& view) const {
  return static_cast<int>(std::ranges::find(buffers_, tile_of(view).slot) - buffers_.begin());
}

void StepRunner::run_update_of(const Op& op) {
  Store& store = parts_.store;
  const int unit = owner_of(op);
  const plan::View& state = op.views[plan::step::UpdateOperand::kState];
  if (tile_of(state).tensor == StepTensor::Buffer) {
    const int buffer = buffer_of(state);
    parts_.optimizer.update(store.staged_pieces(unit, buffer), task_.lr);
    store.place_staged(unit, buffer);
  } else {
    parts_.optimizer.update(unit, task_.lr);
  }
  // No other rank has values for this one: they are there at once.
  if (store.zero() == 0) store.start_gather_values(unit);
}

void StepRunner::run_move(const Op& op) {
  const plan::View& to = op.views[plan::step::MoveOperand::kTo];
  if (tile_of(to).tensor == StepTensor::Buffer) {
    return parts_.store.start_fetch(owner_of(op), buffer_of(to));
  }
  parts_.store.start_move_back(owner_of(op), buffer_of(op.views[plan::step::MoveOperand::kFrom]));
}

comm::Communicator& StepRunner::group_of(const Op& op) const {
  const auto place = static_cast<std::size_t>(op.peer);
  const plan::step::AxisSet axes = step_.tables.axis_sets()[place];
  const Replicas& replicas = parts_.replicas;
  comm::Communicator* const group = axes == step_.tables.tp_axis()        ? replicas.tp
                                    : axes == step_.tables.copies_axis()  ? replicas.copies
                                    : axes == step_.tables.replica_axes() ? replicas.sharded
                                                                          : nullptr;
  ARMILLARY_CHECK(group != nullptr &&
                  group->world() == static_cast<int>(step_.program.groups[place].size()));
  return *group;
}

void StepRunner::run_all_reduce(const Op& op) {
  Store& store = parts_.store;
  if (tensor_of(op) == StepTensor::Loss) return;
  if (tensor_of(op) == StepTensor::Norm) return parts_.optimizer.sum_squares(group_of(op));
  store.finish_sum();
  parts_.recording.set_activity(
      {.name = "sum of gradients", .bytes = store.gradient_bytes(), .collective = true});
  const auto place = static_cast<std::size_t>(op.peer);
  const plan::step::AxisSet axes = step_.tables.axis_sets()[place];
  if ((axes & step_.tables.tp_axis()) == 0) return store.sum_share(owner_of(op), group_of(op));
  store.sum_along_tp(owner_of(op), static_cast<int>(step_.program.groups[place].size()));
}

}  // namespace armillary::train
