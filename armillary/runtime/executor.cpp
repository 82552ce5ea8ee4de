// The ops of attention: each calls the kernel or a function of kernel/merge.h on the tensors that
// are bound to its operands. The machine (machine.cpp) decides when an op runs.
//
// Operands are named as in plan/operands.h. Ops that attend have one kernel call for each
// visible (query segment, key segment); other ops work segment by segment.
#include "armillary/runtime/executor.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/kernel/merge.h"
#include "armillary/plan/operands.h"
#include "armillary/runtime/dtypes.h"
#include "armillary/runtime/or_abort.h"

namespace armillary::runtime {

using plan::AddOperand;
using plan::AttendGradOperand;
using plan::AttendOperand;
using plan::ClearOperand;
using plan::CopyOperand;
using plan::DeltaOperand;
using plan::FinishOperand;
using plan::MergeOperand;

namespace {

RunOptions run_options(const ExecutionOptions& options) {
  return {.timeout_s = options.timeout_s,
          .device = options.device,
          .gate = options.gate,
          .recorder = options.recorder,
          .recorded_group = options.recorded_group};
}

/// Checks that the sinks fit the problem.
void check_sinks(const CompiledProgram& compiled, const at::Tensor& sinks_H) {
  const std::int64_t heads = compiled.problem.heads;
  const at::ScalarType acc = scalar_type(accumulator(compiled.problem.dtype));
  if (sinks_H.defined() &&
      (sinks_H.sizes() != at::IntArrayRef{heads} || sinks_H.scalar_type() != acc)) {
    fail<InvalidArgument>("executor: sinks_H is {} [{}]; {} [{}] is required",
                          at::toString(sinks_H.scalar_type()), fmt::join(sinks_H.sizes(), ", "),
                          at::toString(acc), heads);
  }
}

/// The first op that attends; as many as there are ops if none does.
int first_attend(const plan::RankProgram& program) {
  const auto is_first = [](const plan::Op& op) { return attends(op) || attends_grad(op); };
  return static_cast<int>(std::ranges::find_if(program.ops, is_first) - program.ops.begin());
}

}  // namespace

Execution::Execution(std::shared_ptr<const CompiledProgram> compiled, comm::Communicator& comm,
                     ExecutionOptions options, const at::Tensor& slots)
    : Machine(compiled, comm, run_options(options), slots), program_(std::move(compiled)) {
  time_op(first_attend(program_->program));
  or_abort(comm, [&] { check_sinks(*program_, options.sinks_H); });
  take_options(std::move(options));
}

Execution::~Execution() {
  drain();
}

void Execution::restart(comm::Communicator& comm, ExecutionOptions options,
                        const at::Tensor& slots) {
  check_not_failed();
  or_abort(comm, [&] { check_sinks(*program_, options.sinks_H); });
  Machine::restart(comm, run_options(options), slots);
  take_options(std::move(options));
}

/// Accumulators of what the options ask for: the gradient of the sinks, the largest logits.
void Execution::take_options(ExecutionOptions options) {
  options_ = std::move(options);
  const std::int64_t heads = program_->problem.heads;
  const at::TensorOptions there = at::TensorOptions(at::kDouble).device(device().place());
  dsinks_H_ = options_.sinks_H.defined() ? at::zeros({heads}, there) : at::Tensor();
  max_logit_H_ = at::Tensor();
  if (options_.max_logit) {
    const at::ScalarType acc = scalar_type(accumulator(program_->problem.dtype));
    max_logit_H_ = at::full({heads}, -std::numeric_limits<double>::infinity(), there.dtype(acc));
  }
}

at::Tensor Execution::release() {
  options_.sinks_H = at::Tensor();
  options_.score.alibi_slopes_H = at::Tensor();
  dsinks_H_ = at::Tensor();
  max_logit_H_ = at::Tensor();
  return Machine::release();
}

const std::array<Execution::ComputeOp, plan::kOpKinds> Execution::kOps = [] {
  std::array<ComputeOp, plan::kOpKinds> ops{};
  ops.fill(&Execution::message);
  const auto at = [&](plan::OpKind kind) -> ComputeOp& {
    return ops[static_cast<std::size_t>(kind)];
  };
  at(plan::OpKind::Merge) = &Execution::merge;
  at(plan::OpKind::Add) = &Execution::add;
  at(plan::OpKind::Copy) = &Execution::copy;
  at(plan::OpKind::Clear) = &Execution::clear;
  at(plan::OpKind::Delta) = &Execution::delta;
  at(plan::OpKind::Finish) = &Execution::finish_rows;
  at(plan::OpKind::Attend) = &Execution::attend;
  at(plan::OpKind::AttendAll) = &Execution::attend_all;
  at(plan::OpKind::AttendGrad) = &Execution::attend_grad;
  at(plan::OpKind::AttendGradAll) = &Execution::attend_grad_all;
  return ops;
}();

void Execution::message(int op) {
  fail<InternalError>("executor: {} on the compute lane",
                      program_->words()[program_->ops[op].op->kind].name);
}

/// The elements of the view's heads in a tensor [query heads]; undefined if `x_H` is.
at::Tensor Execution::heads_of(const at::Tensor& x_H, const plan::LocatedView& view) const {
  return x_H.defined() ? x_H.narrow(0, view.first_global_head, view.heads) : at::Tensor();
}

// Row ops: all operands have the same segments.

void Execution::merge(int op) {
  for (std::size_t s = 0; s < segments_of(op); ++s) {
    kernel::Partial into{part(op, MergeOperand::kOut, s), part(op, MergeOperand::kLse, s)};
    kernel::merge(into, {part(op, MergeOperand::kPartOut, s), part(op, MergeOperand::kPartLse, s)});
  }
}

void Execution::add(int op) {
  for (std::size_t s = 0; s < segments_of(op); ++s) {
    kernel::add(part(op, AddOperand::kAcc, s), part(op, AddOperand::kPart, s));
  }
}

void Execution::copy(int op) {
  for (std::size_t s = 0; s < segments_of(op); ++s) {
    const at::Tensor& to = part(op, CopyOperand::kDst, s);
    const at::Tensor& from = part(op, CopyOperand::kSrc, s);
    // Memory tells, not the slot: the source may be borrowed from a peer.
    if (to.data_ptr() != from.data_ptr()) to.copy_(from);
  }
}

void Execution::clear(int op) {
  const int tile = program_->ops[op].views[ClearOperand::kDst].tile;
  const bool lse = program_->program.tiles[tile].tensor == plan::Tensor::Lse;
  const double empty = lse ? -std::numeric_limits<double>::infinity() : 0.0;
  for (std::size_t s = 0; s < segments_of(op); ++s) part(op, ClearOperand::kDst, s).fill_(empty);
}

/// delta = rowsum(dout * out). Every row passes here exactly once in backward, so the gradient of
/// the sinks is added here.
void Execution::delta(int op) {
  const plan::LocatedView& rows = program_->ops[op].views[DeltaOperand::kDelta];
  for (std::size_t s = 0; s < segments_of(op); ++s) {
    at::Tensor delta_BLH = part(op, DeltaOperand::kDelta, s);
    kernel::delta(part(op, DeltaOperand::kDOut, s), part(op, DeltaOperand::kOut, s), delta_BLH);
    if (!options_.sinks_H.defined()) continue;
    at::Tensor dsinks = heads_of(dsinks_H_, rows);
    kernel::sinks_grad(heads_of(options_.sinks_H, rows), part(op, DeltaOperand::kLse, s), delta_BLH,
                       dsinks);
  }
}

/// A partial over all keys becomes the result; sinks join.
void Execution::finish_rows(int op) {
  const plan::LocatedView& rows = program_->ops[op].views[FinishOperand::kOut];
  for (std::size_t s = 0; s < segments_of(op); ++s) {
    at::Tensor out = part(op, FinishOperand::kOut, s);
    at::Tensor lse = part(op, FinishOperand::kLse, s);
    kernel::finish({part(op, FinishOperand::kPartOut, s), part(op, FinishOperand::kPartLse, s)},
                   out, lse, heads_of(options_.sinks_H, rows));
  }
}

// Ops that attend: their kernel calls were prepared by compile().

/// Merges attention over some keys into (out, lse). An op that is `init` has one kernel call, which
/// writes them.
void Execution::attend(int op) {
  const CompiledOp& action = program_->ops[op];
  const auto part = [&](std::size_t v, std::size_t s) { return Machine::part(op, v, s); };
  for (const auto& [i, j, pairs] : program_->calls[op]) {
    kernel::Partial carry{part(AttendOperand::kOut, i), part(AttendOperand::kLse, i),
                          heads_of(max_logit_H_, action.views[AttendOperand::kQ]),
                          action.op->init[plan::kQSide]};
    program_->kernel->attend(pairs,
                             {part(AttendOperand::kQ, i), part(AttendOperand::kK, j),
                              part(AttendOperand::kV, j), options_.score},
                             carry);
  }
}

/// One kernel call over all keys, rounded and with sinks.
void Execution::attend_all(int op) {
  const plan::LocatedView& queries = program_->ops[op].views[AttendOperand::kQ];
  const auto part = [&](std::size_t v) { return Machine::part(op, v, 0); };
  kernel::AttentionOutput result{part(AttendOperand::kOut), part(AttendOperand::kLse),
                                 heads_of(max_logit_H_, queries)};
  program_->kernel->attend_all(
      program_->calls[op][0].pairs,
      {part(AttendOperand::kQ), part(AttendOperand::kK), part(AttendOperand::kV), options_.score},
      heads_of(options_.sinks_H, queries), result);
}

/// Adds the gradients of the visible pairs to dq, dk and dv, or initialises them.
void Execution::attend_grad(int op) {
  const CompiledOp& action = program_->ops[op];
  const auto part = [&](std::size_t v, std::size_t s) { return Machine::part(op, v, s); };
  for (const auto& [i, j, pairs] : program_->calls[op]) {
    kernel::InputGrads grads{part(AttendGradOperand::kDQ, i), part(AttendGradOperand::kDK, j),
                             part(AttendGradOperand::kDV, j), action.op->init[plan::kQSide],
                             action.op->init[plan::kKvSide]};
    program_->kernel->attend_grad(
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
  const auto part = [&](std::size_t v) { return Machine::part(op, v, 0); };
  kernel::InputGrads grads{part(AttendGradOperand::kDQ), part(AttendGradOperand::kDK),
                           part(AttendGradOperand::kDV)};
  program_->kernel->attend_grad_all(program_->calls[op][0].pairs,
                                    {part(AttendGradOperand::kQ), part(AttendGradOperand::kK),
                                     part(AttendGradOperand::kV), options_.score},
                                    {part(AttendGradOperand::kDOut), part(AttendGradOperand::kLse),
                                     part(AttendGradOperand::kDelta)},
                                    grads);
}

}  // namespace armillary::runtime
