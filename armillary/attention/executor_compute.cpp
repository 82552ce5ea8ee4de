// What the ops of the compute lane do; executor.cpp has when.
#include <ATen/ATen.h>

#include <limits>

#include "armillary/attention/executor.h"
#include "armillary/core/error.h"
#include "armillary/kernel/merge.h"

namespace armillary::attention {

/// Whether `source` lives in `target`, so that there is nothing to move.
bool Execution::at_home(int op, std::size_t target, std::size_t source) const {
  const std::vector<LocatedView>& views = compiled_->views[op];
  return compiled_->home[views[source].tile] == views[target].tile;
}

void Execution::compute(int op) {
  const plan::Op& action = compiled_->program.ops[op];
  if (compiled_->fused[op]) return;
  if (action.kind == plan::OpKind::Attend) return attend(op);
  if (action.kind == plan::OpKind::AttendGrad) return attend_grad(op);
  for (std::size_t s = 0; s < compiled_->views[op][0].segments.size(); ++s) {
    const auto operand = [&](std::size_t v) -> const at::Tensor& { return operands_.at(op, v, s); };
    switch (action.kind) {
      case plan::OpKind::Merge: {
        kernel::Partial into{operand(0), operand(1)};
        kernel::merge(into, {operand(2), operand(3)});
        break;
      }
      case plan::OpKind::Add:
        kernel::add(operand(0), operand(1));
        break;
      case plan::OpKind::Copy:
        if (!at_home(op, 0, 1)) operand(0).copy_(operand(1));
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
        fail<InternalError>("executor: {} on the compute lane", to_string(action.kind));
    }
  }
}

/// What a view's heads have of a tensor with an element for every query head.
at::Tensor Execution::heads_of(const at::Tensor& x_H, const LocatedView& view) const {
  return x_H.defined() ? x_H.narrow(0, view.first_global_head, view.heads) : at::Tensor();
}

void Execution::delta(int op, std::size_t segment) {
  at::Tensor delta_BLH = operands_.at(op, 0, segment);
  kernel::delta(operands_.at(op, 1, segment), operands_.at(op, 2, segment), delta_BLH);
  if (!options_.sinks_H.defined()) return;
  const LocatedView& rows = compiled_->views[op][0];
  at::Tensor dsinks = heads_of(dsinks_H_, rows);
  kernel::sinks_grad(heads_of(options_.sinks_H, rows), operands_.at(op, 3, segment), delta_BLH,
                     dsinks);
}

void Execution::finish_rows(int op, std::size_t segment) {
  at::Tensor out = operands_.at(op, 0, segment);
  at::Tensor lse = operands_.at(op, 1, segment);
  kernel::finish({operands_.at(op, 2, segment), operands_.at(op, 3, segment)}, out, lse,
                 heads_of(options_.sinks_H, compiled_->views[op][0]));
}

/// Of one segment.
const at::Tensor& Execution::written(const ResultView& result) const {
  return operands_.at(result.op, result.operand, 0);
}

void Execution::attend(int op) {
  const LocatedView& queries = compiled_->views[op][0];
  const auto part = [&](std::size_t v, std::size_t s) { return operands_.at(op, v, s); };
  if (const std::vector<ResultView>& results = compiled_->results[op]; !results.empty()) {
    kernel::Result result{written(results[0]), written(results[1]),
                          heads_of(max_logit_H_, queries)};
    compiled_->kernel->attend_all(compiled_->calls[op][0].pairs,
                                  {part(0, 0), part(1, 0), part(2, 0), options_.score},
                                  heads_of(options_.sinks_H, queries), result);
    return;
  }
  for (const auto& [i, j, pairs] : compiled_->calls[op]) {
    kernel::Partial carry{part(3, i), part(4, i), heads_of(max_logit_H_, queries),
                          compiled_->fresh[op][0]};
    compiled_->kernel->attend(pairs, {part(0, i), part(1, j), part(2, j), options_.score}, carry);
  }
}

void Execution::attend_grad(int op) {
  const auto part = [&](std::size_t v, std::size_t s) { return operands_.at(op, v, s); };
  if (const std::vector<ResultView>& results = compiled_->results[op]; !results.empty()) {
    kernel::InputGrads grads{written(results[0]), written(results[1]), written(results[2])};
    compiled_->kernel->attend_grad_all(compiled_->calls[op][0].pairs,
                                       {part(0, 0), part(1, 0), part(2, 0), options_.score},
                                       {part(3, 0), part(4, 0), part(5, 0)}, grads);
    return;
  }
  for (const auto& [i, j, pairs] : compiled_->calls[op]) {
    kernel::InputGrads grads{part(6, i), part(7, j), part(8, j), compiled_->fresh[op][0],
                             compiled_->fresh[op][1]};
    compiled_->kernel->attend_grad(pairs, {part(0, i), part(1, j), part(2, j), options_.score},
                                   {part(3, i), part(4, i), part(5, i)}, grads);
  }
}

}  // namespace armillary::attention
