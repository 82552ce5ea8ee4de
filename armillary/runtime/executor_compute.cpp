// What the ops of the compute lane do; executor.cpp has when.
#include <ATen/ATen.h>

#include <limits>

#include "armillary/core/error.h"
#include "armillary/kernel/merge.h"
#include "armillary/runtime/executor.h"

namespace armillary::runtime {

/// Whether `source` lies where `target` does, so that there is nothing to move.
bool Execution::in_place(const CompiledOp& op, std::size_t target, std::size_t source) const {
  const std::vector<plan::Tile>& tiles = compiled_->program.tiles;
  return tiles[op.views[source].tile].slot == tiles[op.views[target].tile].slot;
}

void Execution::run(int op) {
  const CompiledOp& action = compiled_->ops[op];
  const plan::OpKind kind = action.op->kind;
  if (kind == plan::OpKind::Attend) return attend(op);
  if (kind == plan::OpKind::AttendAll) return attend_all(op);
  if (kind == plan::OpKind::AttendGrad) return attend_grad(op);
  if (kind == plan::OpKind::AttendGradAll) return attend_grad_all(op);
  for (std::size_t s = 0; s < action.views[0].segments.size(); ++s) {
    const auto operand = [&](std::size_t v) -> const at::Tensor& { return operands_.at(op, v, s); };
    switch (kind) {
      case plan::OpKind::Merge: {
        kernel::Partial into{operand(0), operand(1)};
        kernel::merge(into, {operand(2), operand(3)});
        break;
      }
      case plan::OpKind::Add:
        kernel::add(operand(0), operand(1));
        break;
      case plan::OpKind::Copy:
        if (!in_place(action, 0, 1)) operand(0).copy_(operand(1));
        break;
      case plan::OpKind::Clear: {
        const bool lse = compiled_->program.tiles[action.views[0].tile].tensor == plan::Tensor::Lse;
        operand(0).fill_(lse ? -std::numeric_limits<double>::infinity() : 0.0);
        break;
      }
      case plan::OpKind::Delta:
        delta(op, s);
        break;
      case plan::OpKind::Finish:
        finish_rows(op, s);
        break;
      default:
        fail<InternalError>("executor: {} on the compute lane", to_string(kind));
    }
  }
}

/// What a view's heads have of a tensor with an element for every query head.
at::Tensor Execution::heads_of(const at::Tensor& x_H, const plan::LocatedView& view) const {
  return x_H.defined() ? x_H.narrow(0, view.first_global_head, view.heads) : at::Tensor();
}

void Execution::delta(int op, std::size_t segment) {
  at::Tensor delta_BLH = operands_.at(op, 0, segment);
  kernel::delta(operands_.at(op, 1, segment), operands_.at(op, 2, segment), delta_BLH);
  if (!options_.sinks_H.defined()) return;
  const plan::LocatedView& rows = compiled_->ops[op].views[0];
  at::Tensor dsinks = heads_of(dsinks_H_, rows);
  kernel::sinks_grad(heads_of(options_.sinks_H, rows), operands_.at(op, 3, segment), delta_BLH,
                     dsinks);
}

void Execution::finish_rows(int op, std::size_t segment) {
  at::Tensor out = operands_.at(op, 0, segment);
  at::Tensor lse = operands_.at(op, 1, segment);
  kernel::finish({operands_.at(op, 2, segment), operands_.at(op, 3, segment)}, out, lse,
                 heads_of(options_.sinks_H, compiled_->ops[op].views[0]));
}

void Execution::attend(int op) {
  const CompiledOp& action = compiled_->ops[op];
  const auto part = [&](std::size_t v, std::size_t s) { return operands_.at(op, v, s); };
  for (const auto& [i, j, pairs] : action.calls) {
    kernel::Partial carry{part(3, i), part(4, i), heads_of(max_logit_H_, action.views[0]),
                          action.op->fresh_q};
    compiled_->kernel->attend(pairs, {part(0, i), part(1, j), part(2, j), options_.score}, carry);
  }
}

void Execution::attend_all(int op) {
  const plan::LocatedView& queries = compiled_->ops[op].views[0];
  const auto part = [&](std::size_t v) { return operands_.at(op, v, 0); };
  kernel::Result result{part(3), part(4), heads_of(max_logit_H_, queries)};
  compiled_->kernel->attend_all(compiled_->ops[op].calls[0].pairs,
                                {part(0), part(1), part(2), options_.score},
                                heads_of(options_.sinks_H, queries), result);
}

void Execution::attend_grad(int op) {
  const CompiledOp& action = compiled_->ops[op];
  const auto part = [&](std::size_t v, std::size_t s) { return operands_.at(op, v, s); };
  for (const auto& [i, j, pairs] : action.calls) {
    kernel::InputGrads grads{part(6, i), part(7, j), part(8, j), action.op->fresh_q,
                             action.op->fresh_kv};
    compiled_->kernel->attend_grad(pairs, {part(0, i), part(1, j), part(2, j), options_.score},
                                   {part(3, i), part(4, i), part(5, i)}, grads);
  }
}

void Execution::attend_grad_all(int op) {
  const auto part = [&](std::size_t v) { return operands_.at(op, v, 0); };
  kernel::InputGrads grads{part(6), part(7), part(8)};
  compiled_->kernel->attend_grad_all(compiled_->ops[op].calls[0].pairs,
                                     {part(0), part(1), part(2), options_.score},
                                     {part(3), part(4), part(5)}, grads);
}

}  // namespace armillary::runtime
