// functional.cpp: forward and backward on an AttentionCall, with tensors in the place of a graph.
// Forward runs the program of this rank and gives the five tensors that backward needs; backward
// feeds them to a run of its own. is_own tells which of them are not the caller's own inputs or
// output.
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

/// The tensors of SavedAttention, in the order of its members.
constexpr plan::Tensor kOrder[] = {plan::Tensor::Q, plan::Tensor::K, plan::Tensor::V,
                                   plan::Tensor::Out, plan::Tensor::Lse};

std::optional<at::Tensor> sinks_of(const AttentionOptions& options) {
  return options.sinks_H.defined() ? std::optional(options.sinks_H) : std::nullopt;
}

/// The tile that forward saves of a tensor.
int saved_tile(const plan::RankProgram& program, plan::Tensor tensor) {
  const auto tile =
      std::ranges::find_if(program.saved, [&](int t) { return program.tiles[t].tensor == tensor; });
  ARMILLARY_CHECK(tile != program.saved.end());
  return *tile;
}

IsOwn is_own_of(const plan::RankProgram& program) {
  IsOwn is_own{};
  for (std::size_t i = 0; i < std::size(kOrder); ++i) {
    const int tile = saved_tile(program, kOrder[i]);
    is_own[i] =
        !std::ranges::count(program.inputs, tile) && !std::ranges::count(program.outputs, tile);
  }
  return is_own;
}

/// Marks the context as free again if a call ends by an exception. Its run is dropped before the
/// group is aborted, as messages under way use its memory.
class BusyUntilEnd {
 public:
  explicit BusyUntilEnd(AttentionCall& call) : call_(call) {}
  BusyUntilEnd(const BusyUntilEnd&) = delete;
  BusyUntilEnd& operator=(const BusyUntilEnd&) = delete;
  ~BusyUntilEnd() {
    if (call_.run) call_.end();
  }

 private:
  AttentionCall& call_;
};

void check_device(const char* name, const at::Tensor& given, at::Device place) {
  if (given.device() == place) return;
  fail<InvalidArgument>("attention: {} is on {}; {} is required, where the group computes", name,
                        given.device().str(), place.str());
}

ForwardResult run_forward(const AttentionInputs& inputs, comm::Communicator& comm,
                          const AttentionOptions& options) {
  const AttentionShape shape = attention_shape_of(inputs.q_BLHD, inputs.k_BLGD, inputs.v_BLGE);
  check_device("q", inputs.q_BLHD, runtime::Context::of(comm).device().place());
  const auto call = prepare_call(CallKind::Functional, shape, comm, options, {});
  call->start(call->programs->forward, sinks_of(options));
  const BusyUntilEnd guard(*call);
  call->agree();
  // Run the program. Q comes last: K and V may travel meanwhile.
  call->run->feed(plan::Tensor::K, inputs.k_BLGD);
  call->run->feed(plan::Tensor::V, inputs.v_BLGE);
  call->run->feed(plan::Tensor::Q, inputs.q_BLHD);
  call->run->finish();
  std::unique_ptr<runtime::Execution> run = call->end();
  const auto saved = [&](plan::Tensor tensor) { return run->saved(tensor); };
  ForwardResult result{
      .out_BLHE = run->output(plan::Tensor::Out),
      .saved = {.q = saved(plan::Tensor::Q),
                .k = saved(plan::Tensor::K),
                .v = saved(plan::Tensor::V),
                .out = saved(plan::Tensor::Out),
                .lse = saved(plan::Tensor::Lse)},
      .is_own = is_own_of(call->programs->forward->program),
      .max_logit_H = options.return_max_logit ? call->max_over_ranks(*run) : at::Tensor()};
  call->context->executions().give_back(std::move(run));
  return result;
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
  for (std::size_t i = 0; i < std::size(kOrder); ++i) run->feed(kOrder[i], *tensors[i]);
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
  const at::NoGradGuard no_grad;
  return runtime::or_abort(comm, [&] { return run_forward(inputs, comm, options); });
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
  for (std::size_t i = 0; i < std::size(kOrder); ++i) {
    form.shapes[i] = forward.shapes[saved_tile(forward.program, kOrder[i])];
  }
  return form;
}

}  // namespace armillary::attention
