// attention.cpp: calls that are given all inputs at once, and backward without a graph. Forward
// gives the five tensors that backward needs; backward feeds them to a run of its own.
#include "armillary/attention/attention.h"

#include <ATen/core/grad_mode.h>

#include <iterator>
#include <optional>
#include <utility>

#include "armillary/attention/attention_call.h"
#include "armillary/core/error.h"
#include "armillary/predict/tune/automatic.h"
#include "armillary/runtime/or_abort.h"

namespace armillary::attention {
namespace {

std::optional<at::Tensor> sinks_of(const AttentionOptions& options) {
  return options.sinks_H.defined() ? std::optional(options.sinks_H) : std::nullopt;
}

void check_device(const char* name, const at::Tensor& tensor, at::Device place) {
  if (tensor.device() == place) return;
  fail<InvalidArgument>("attention: {} is on {}; {} is required, where the group computes", name,
                        tensor.device().str(), place.str());
}

AttentionGradients run_backward(const SavedAttention& saved, const at::Tensor& dout_BLHE,
                                const AttentionShape& shape, comm::Communicator& comm,
                                const AttentionOptions& options) {
  const auto call = prepare_backward(shape, comm, options);
  check_device("the gradient", dout_BLHE, call->rank->device().place());
  const at::Tensor tensors[] = {saved.q, saved.k, saved.v, saved.out, saved.lse};
  const std::vector<at::Tensor> gradients =
      call->run_backward(tensors, dout_BLHE, sinks_of(options));
  return {.dq_BLHD = gradients[0],
          .dk_BLGD = gradients[1],
          .dv_BLGE = gradients[2],
          .dsinks_H = gradients[3]};
}

}  // namespace

Attention::Attention(comm::Communicator& comm, AttentionOptions options)
    : comm_(&comm), options_(std::move(options)) {}

AttentionInProgress Attention::begin(CallKind kind, const AttentionShape& shape,
                                     const KeptAttention& kept_output) const {
  return AttentionInProgress::begin(kind, shape, *comm_, options_, kept_output);
}

AttentionResults Attention::run(CallKind kind, const AttentionInputs& inputs,
                                const KeptAttention& kept_output) const {
  // Shapes are checked first, and a rank that refuses its own aborts the group, so that no peer
  // waits for it.
  const AttentionShape shape = runtime::or_abort(
      *comm_, [&] { return attention_shape_of(inputs.q_BLHD, inputs.k_BLGD, inputs.v_BLGE); });
  return begin(kind, shape, kept_output).finish(inputs.q_BLHD, inputs.k_BLGD, inputs.v_BLGE);
}

AttentionGradients Attention::backward(const SavedAttention& saved, const at::Tensor& dout_BLHE,
                                       const AttentionShape& shape) const {
  const at::NoGradGuard no_grad;
  return runtime::or_abort(*comm_,
                           [&] { return run_backward(saved, dout_BLHE, shape, *comm_, options_); });
}

at::Tensor sequence_parallel_attention(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                       const at::Tensor& v_BLGE, comm::Communicator& comm,
                                       const AttentionOptions& options) {
  return Attention(comm, options).run(CallKind::Attention, {q_BLHD, k_BLGD, v_BLGE}).out_BLHE;
}

SavedForm saved_form(const AttentionShape& shape, GroupPlace place,
                     const AttentionOptions& options) {
  const plan::Problem problem = problem_of(CallKind::Functional, shape, place.world, options);
  const auto programs =
      runtime::compile_cached(problem, tune::strategy_of(options.strategy, problem), place.rank,
                              runtime::cpu_device().kernel(), options.programs);
  const runtime::CompiledProgram& forward = *programs->forward;
  SavedForm form{.shapes = {}, .is_own = is_own_of(forward.program)};
  for (std::size_t i = 0; i < std::size(kSaved); ++i) {
    form.shapes[i] = forward.shapes[saved_tile(forward.program, kSaved[i])];
  }
  return form;
}

}  // namespace armillary::attention
