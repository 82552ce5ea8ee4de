// The ops of the compute lane: each calls the kernel or a function of kernel/merge.h on the tensors
// that are bound to its operands. executor.cpp decides when an op runs.
//
// Operands are named as in plan/operands.h. Ops that attend have one kernel call for each
// visible (query segment, key segment); other ops work segment by segment.
#include <ATen/ATen.h>

#include <limits>

#include "armillary/core/error.h"
#include "armillary/kernel/merge.h"
#include "armillary/plan/operands.h"
#include "armillary/runtime/executor.h"

namespace armillary::runtime {

using plan::AddOperand;
using plan::AttendGradOperand;
using plan::AttendOperand;
using plan::ClearOperand;
using plan::CopyOperand;
using plan::DeltaOperand;
using plan::FinishOperand;
using plan::MergeOperand;

void Execution::run(int op) {
  const CompiledOp& action = compiled_->ops[op];
  const plan::OpKind kind = action.op->kind;
  // Ops that attend: their kernel calls were prepared by compile().
  if (kind == plan::OpKind::Attend) return attend(op);
  if (kind == plan::OpKind::AttendAll) return attend_all(op);
  if (kind == plan::OpKind::AttendGrad) return attend_grad(op);
  if (kind == plan::OpKind::AttendGradAll) return attend_grad_all(op);
  // Row ops: all operands have the same segments.
  for (std::size_t s = 0; s < action.views[0].segments.size(); ++s) {
    const auto operand = [&](std::size_t v) -> const at::Tensor& {
      return bound_tensors_.at(op, v, s);
    };
    switch (kind) {
      case plan::OpKind::Merge: {
        kernel::Partial into{operand(MergeOperand::kOut), operand(MergeOperand::kLse)};
        kernel::merge(into, {operand(MergeOperand::kPartOut), operand(MergeOperand::kPartLse)});
        break;
      }
      case plan::OpKind::Add:
        kernel::add(operand(AddOperand::kAcc), operand(AddOperand::kPart));
        break;
      case plan::OpKind::Copy:
        // Memory tells, not the slot: the source may be borrowed from a peer.
        if (operand(CopyOperand::kDst).data_ptr() != operand(CopyOperand::kSrc).data_ptr()) {
          operand(CopyOperand::kDst).copy_(operand(CopyOperand::kSrc));
        }
        break;
      case plan::OpKind::Clear: {
        const int tile = action.views[ClearOperand::kDst].tile;
        const bool lse = compiled_->program.tiles[tile].tensor == plan::Tensor::Lse;
        operand(ClearOperand::kDst).fill_(lse ? -std::numeric_limits<double>::infinity() : 0.0);
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

/// The elements of the view's heads in a tensor [query heads]; undefined if `x_H` is.
at::Tensor Execution::heads_of(const at::Tensor& x_H, const plan::LocatedView& view) const {
  return x_H.defined() ? x_H.narrow(0, view.first_global_head, view.heads) : at::Tensor();
}

/// delta = rowsum(dout * out). Every row passes here exactly once in backward, so the gradient of
/// the sinks is added here.
void Execution::delta(int op, std::size_t segment) {
  const auto part = [&](std::size_t v) { return bound_tensors_.at(op, v, segment); };
  at::Tensor delta_BLH = part(DeltaOperand::kDelta);
  kernel::delta(part(DeltaOperand::kDOut), part(DeltaOperand::kOut), delta_BLH);
  if (!options_.sinks_H.defined()) return;
  const plan::LocatedView& rows = compiled_->ops[op].views[DeltaOperand::kDelta];
  at::Tensor dsinks = heads_of(dsinks_H_, rows);
  kernel::sinks_grad(heads_of(options_.sinks_H, rows), part(DeltaOperand::kLse), delta_BLH, dsinks);
}

/// A partial over all keys becomes the result; sinks join.
void Execution::finish_rows(int op, std::size_t segment) {
  const auto part = [&](std::size_t v) { return bound_tensors_.at(op, v, segment); };
  at::Tensor out = part(FinishOperand::kOut);
  at::Tensor lse = part(FinishOperand::kLse);
  kernel::finish({part(FinishOperand::kPartOut), part(FinishOperand::kPartLse)}, out, lse,
                 heads_of(options_.sinks_H, compiled_->ops[op].views[FinishOperand::kOut]));
}

/// Merges attention over some keys into (out, lse). An op that is `init` has one kernel call, which
/// writes them.
void Execution::attend(int op) {
  const CompiledOp& action = compiled_->ops[op];
  const auto part = [&](std::size_t v, std::size_t s) { return bound_tensors_.at(op, v, s); };
  for (const auto& [i, j, pairs] : action.calls) {
    kernel::Partial carry{part(AttendOperand::kOut, i), part(AttendOperand::kLse, i),
                          heads_of(max_logit_H_, action.views[AttendOperand::kQ]),
                          action.op->init_q};
    compiled_->kernel->attend(pairs,
                              {part(AttendOperand::kQ, i), part(AttendOperand::kK, j),
                               part(AttendOperand::kV, j), options_.score},
                              carry);
  }
}

/// One kernel call over all keys, rounded and with sinks.
void Execution::attend_all(int op) {
  const plan::LocatedView& queries = compiled_->ops[op].views[AttendOperand::kQ];
  const auto part = [&](std::size_t v) { return bound_tensors_.at(op, v, 0); };
  kernel::AttentionOutput result{part(AttendOperand::kOut), part(AttendOperand::kLse),
                                 heads_of(max_logit_H_, queries)};
  compiled_->kernel->attend_all(
      compiled_->ops[op].calls[0].pairs,
      {part(AttendOperand::kQ), part(AttendOperand::kK), part(AttendOperand::kV), options_.score},
      heads_of(options_.sinks_H, queries), result);
}

/// Adds the gradients of the visible pairs to dq, dk and dv, or initialises them.
void Execution::attend_grad(int op) {
  const CompiledOp& action = compiled_->ops[op];
  const auto part = [&](std::size_t v, std::size_t s) { return bound_tensors_.at(op, v, s); };
  for (const auto& [i, j, pairs] : action.calls) {
    kernel::InputGrads grads{part(AttendGradOperand::kDQ, i), part(AttendGradOperand::kDK, j),
                             part(AttendGradOperand::kDV, j), action.op->init_q,
                             action.op->init_kv};
    compiled_->kernel->attend_grad(
        pairs,
        {part(AttendGradOperand::kQ, i), part(AttendGradOperand::kK, j),
         part(AttendGradOperand::kV, j), options_.score},
        {part(AttendGradOperand::kDOut, i), part(AttendGradOperand::kLse, i),
         part(AttendGradOperand::kDelta, i)},
        grads);
  }
}

/// One kernel call that writes all of dq, dk and dv, rounded.
void Execution::attend_grad_all(int op) {
  const auto part = [&](std::size_t v) { return bound_tensors_.at(op, v, 0); };
  kernel::InputGrads grads{part(AttendGradOperand::kDQ), part(AttendGradOperand::kDK),
                           part(AttendGradOperand::kDV)};
  compiled_->kernel->attend_grad_all(compiled_->ops[op].calls[0].pairs,
                                     {part(AttendGradOperand::kQ), part(AttendGradOperand::kK),
                                      part(AttendGradOperand::kV), options_.score},
                                     {part(AttendGradOperand::kDOut), part(AttendGradOperand::kLse),
                                      part(AttendGradOperand::kDelta)},
                                     grads);
}

}  // namespace armillary::runtime
