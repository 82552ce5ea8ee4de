// The dispatcher. A unit that uses the values of several has an op for each, of which the first
// begins its run. Sums of gradients are waited for where the program says that something reads
// them: at a release, at a gather of them, at the norm; those of stages 1 to 3 at the next one too.
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
  for (const std::vector<plan::Rank>& ranks : step.program.groups) {
    groups_.push_back(group_with(ranks));
  }
  loss_group_ = parts.world.world() == 1 ? &parts.world : nullptr;
  for (const Op& op : ops) {
    if (!plan::step::step_words()[op.kind].joint) continue;
    ARMILLARY_CHECK(groups_.at(static_cast<std::size_t>(op.peer)) != nullptr);
    ARMILLARY_CHECK(goes_over_its_group(op));
    if (tensor_of(op) == StepTensor::Loss) loss_group_ = &group_of(op);
  }
  ARMILLARY_CHECK(loss_group_ != nullptr);
}

double StepRunner::run_gradients() {
  parts_.store.zero_gradients();
  run_ops(0, norm_);
  parts_.recording.set_activity(sum_of_gradients());
  parts_.store.finish_sums();
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
      return tensor_of(op) == StepTensor::Grad ? store.start_gather_sum(owner_of(op))
                                               : store.start_gather_values(owner_of(op));
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
  if (task_.watch != nullptr) task_.watch->begin_forward(unit);
  pass.out = parts_.model.run(unit, weights, pass.in, *inputs_);
  if (task_.watch != nullptr) task_.watch->end_forward(pass.out);
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
  if (task_.watch != nullptr) task_.watch->see_gradients(store.not_finite(unit));
  grad_ = pass.in.defined() ? pass.in.grad() : at::Tensor();
  if (unit > 0) return;
  store.check_views();
  inputs_.reset();
}

void StepRunner::run_release(const Op& op) {
  if (tensor_of(op) == StepTensor::Weight) return parts_.store.drop_values(owner_of(op));
  parts_.store.finish_sums();
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
  if (store.zero(unit) == 0) store.start_gather_values(unit);
}

void StepRunner::run_move(const Op& op) {
  const plan::View& to = op.views[plan::step::MoveOperand::kTo];
  if (tile_of(to).tensor == StepTensor::Buffer) {
    return parts_.store.start_fetch(owner_of(op), buffer_of(to));
  }
  parts_.store.start_move_back(owner_of(op), buffer_of(op.views[plan::step::MoveOperand::kFrom]));
}

/// The group of the store, or of all, that has these ranks of the mesh.
comm::Communicator* StepRunner::group_with(const std::vector<plan::Rank>& ranks) const {
  const comm::Communicator& world = parts_.world;
  const Replicas& replicas = parts_.store.replicas();
  const auto has_ranks = [&](const comm::Communicator* group) {
    if (group == nullptr || group->world() != static_cast<int>(ranks.size())) return false;
    int place = 0;
    return std::ranges::all_of(
        ranks, [&](plan::Rank rank) { return group->root_rank(place++) == world.root_rank(rank); });
  };
  for (comm::Communicator* const group : {replicas.sharded, replicas.copies, replicas.tp,
                                          parts_.store.sharers(step_.tables.shape().sharers),
                                          replicas.experts, replicas.ep, &parts_.world}) {
    if (has_ranks(group)) return group;
  }
  return nullptr;
}

comm::Communicator& StepRunner::group_of(const Op& op) const {
  return *groups_[static_cast<std::size_t>(op.peer)];
}

/// Whether gradients are summed over ranks along tp that have the same values. Replicas of experts
/// may be these ranks too.
bool StepRunner::is_along_tp(const Op& op) const {
  const comm::Communicator& group = group_of(op);
  return !step_.tables.has_experts(owner_of(op)) && &group == parts_.store.sharers(group.world());
}

/// Whether the group of a joint op is the one over which its values are spread.
bool StepRunner::goes_over_its_group(const Op& op) const {
  const comm::Communicator& group = group_of(op);
  const Replicas& replicas = parts_.store.replicas();
  if (!(op.kind == StepOp::AllReduce)) return &group == parts_.store.replicas(owner_of(op));
  if (tensor_of(op) == StepTensor::Loss) return group.world() == parts_.world.world();
  if (tensor_of(op) == StepTensor::Norm) {
    return &group == replicas.sharded || &group == replicas.tp || &group == replicas.ep;
  }
  return sums_over_its_group(op);
}

/// The same for an all-reduce of gradients: of one use along tp, or of a whole unit.
bool StepRunner::sums_over_its_group(const Op& op) const {
  const comm::Communicator& group = group_of(op);
  const plan::step::StepTables& tables = step_.tables;
  const plan::BlockIds& parts = op.views.front().blocks;
  const int unit = owner_of(op);
  if (is_along_tp(op)) {
    const plan::step::TpUse use = tables.parts()[static_cast<std::size_t>(parts.front())].use;
    return parts.size() == 1 && group.world() == tables.holders(use);
  }
  return &group == parts_.store.replicas().copies && parts == tables.parts_of(unit);
}

recorder::Activity StepRunner::sum_of_gradients() const {
  return {.name = "sum of gradients", .bytes = parts_.store.gradient_bytes(), .collective = true};
}

void StepRunner::run_all_reduce(const Op& op) {
  Store& store = parts_.store;
  comm::Communicator& group = group_of(op);
  if (tensor_of(op) == StepTensor::Loss) return;
  if (tensor_of(op) == StepTensor::Norm) return parts_.optimizer.sum_squares(group);
  parts_.recording.set_activity(sum_of_gradients());
  // Sums over replicas of other units go on meanwhile.
  if (is_along_tp(op)) return store.sum_along_tp(owner_of(op), group);
  store.finish_sums();
  store.sum_share(owner_of(op), group);
}

}  // namespace armillary::train
