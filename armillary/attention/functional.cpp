// functional.cpp: forward and backward with tensors in the place of a graph. Forward is a call
// whose inputs come together, and gives the five tensors that backward needs; backward feeds them
// to a run of its own. is_own tells which of them are not the caller's own inputs or output.
#include "armillary/attention/functional.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "armillary/attention/attention_call.h"
#include "armillary/core/error.h"
#include "armillary/runtime/or_abort.h"
#include "armillary/tune/automatic.h"

namespace armillary::attention {
namespace {

std::optional<at::Tensor> sinks_of(const AttentionOptions& options) {
  return options.sinks_H.defined() ? std::optional(options.sinks_H) : std::nullopt;
}

void check_device(const char* name, const at::Tensor& given, at::Device place) {
  if (given.device() == place) return;
  fail<InvalidArgument>("attention: {} is on {}; {} is required, where the group computes", name,
                        given.device().str(), place.str());
}

AttentionGradients run_backward(const SavedAttention& saved, const at::Tensor& dout_BLHE,
                                const AttentionShape& shape, comm::Communicator& comm,
                                const AttentionOptions& options) {
  const auto call = prepare_backward(shape, comm, options);
  check_device("the gradient", dout_BLHE, call->context->device().place());
  const std::optional<at::Tensor> sinks_H = sinks_of(options);
  std::unique_ptr<runtime::Execution> run =
      call->context->executions().take(call->backward(), comm, call->options_with(sinks_H));
  const at::Tensor* const tensors[] = {&saved.q, &saved.k, &saved.v, &saved.out, &saved.lse};
  for (std::size_t i = 0; i < std::size(kSaved); ++i) run->feed(kSaved[i], *tensors[i]);
  run->feed(plan::Tensor::DOut, dout_BLHE);
  run->finish();
  AttentionGradients gradients{
      .dq_BLHD = run->output(plan::Tensor::DQ),
      .dk_BLGD = run->output(plan::Tensor::DK),
      .dv_BLGE = run->output(plan::Tensor::DV),
      .dsinks_H = sinks_H ? run->sinks_grad().to(sinks_H->scalar_type()) : at::Tensor()};
  call->context->executions().give_back(std::move(run));
  return gradients;
}

}  // namespace

ForwardResult forward(const AttentionInputs& inputs, comm::Communicator& comm,
                      const AttentionOptions& options) {
  const AttentionShape shape = runtime::or_abort(
      comm, [&] { return attention_shape_of(inputs.q_BLHD, inputs.k_BLGD, inputs.v_BLGE); });
  auto call = AttentionInProgress::begin(CallKind::Functional, shape, comm, options);
  AttentionResults results = call.finish(inputs.q_BLHD, inputs.k_BLGD, inputs.v_BLGE);
  return {.out_BLHE = std::move(results.out_BLHE),
          .saved = std::move(results.saved),
          .is_own = results.is_own,
          .max_logit_H = std::move(results.max_logit_H)};
}

AttentionGradients backward(const SavedAttention& saved, const at::Tensor& dout_BLHE,
                            const AttentionShape& shape, comm::Communicator& comm,
                            const AttentionOptions& options) {
  const at::NoGradGuard no_grad;
  return runtime::or_abort(comm,
                           [&] { return run_backward(saved, dout_BLHE, shape, comm, options); });
}

SavedForm saved_form(const AttentionShape& shape, GroupPlace place,
                     const AttentionOptions& options) {
  const plan::Problem problem = problem_of(CallKind::Functional, shape, place.world, options);
  const auto programs =
      runtime::compile_cached(problem, tune::strategy_of(options.strategy, problem), place.rank,
                              runtime::cpu_device().kernel());
  const runtime::CompiledProgram& forward = *programs->forward;
  SavedForm form{.shapes = {}, .is_own = is_own_of(forward.program)};
  for (std::size_t i = 0; i < std::size(kSaved); ++i) {
    form.shapes[i] = forward.shapes[saved_tile(forward.program, kSaved[i])];
  }
  return form;
}

}  // namespace armillary::attention
