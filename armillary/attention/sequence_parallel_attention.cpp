#include "armillary/attention/sequence_parallel_attention.h"

#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <memory>
#include <span>
#include <utility>

#include "armillary/attention/executor.h"
#include "armillary/attention/or_abort.h"
#include "armillary/attention/resting_executions.h"
#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"
#include "armillary/kernel/cpu_kernel.h"

namespace armillary::attention {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// What one call needs of the world around it; lives as long as its graph.
struct Call : torch::CustomClassHolder {
  CompiledAttention programs;
  comm::Communicator* comm = nullptr;
  ExecutionOptions options;  ///< Without sinks: a parameter, which the graph holds.
  KeptAttention kept;        ///< Of a replay.

  ExecutionOptions options_with(const std::optional<at::Tensor>& sinks_H) const {
    ExecutionOptions with = options;
    if (sinks_H) {
      const bool fp64 = programs.forward->problem.dtype == plan::Dtype::F64;
      with.sinks_H = sinks_H->detach().to(fp64 ? at::kDouble : at::kFloat);
    }
    return with;
  }
};

/// The largest of every rank's numbers, the same on all ranks. NaN wins.
at::Tensor max_over_ranks(const at::Tensor& mine_H, comm::Communicator& comm) {
  const at::Tensor all_PH = at::empty({comm.world(), mine_H.size(0)}, mine_H.options());
  const auto bytes = [](const at::Tensor& x) {
    return std::span(static_cast<std::byte*>(x.data_ptr()), x.nbytes());
  };
  comm::all_gather(comm, bytes(mine_H), bytes(all_PH));
  return all_PH.amax(0);
}

constexpr plan::Tensor kSaved[] = {plan::Tensor::Q, plan::Tensor::K, plan::Tensor::V,
                                   plan::Tensor::Out, plan::Tensor::Lse};

/// Forward, or the replay of what was kept.
std::unique_ptr<Execution> run_forward(const Call& call, const at::Tensor& q_BLHD,
                                       const at::Tensor& k_BLGD, const at::Tensor& v_BLGE,
                                       const std::optional<at::Tensor>& sinks_H) {
  const bool replays = call.kept.out.defined();
  std::unique_ptr<Execution> taken = RestingExecutions::of_this_thread().take(
      replays ? call.programs.replay : call.programs.forward, *call.comm,
      call.options_with(sinks_H));
  Execution& run = *taken;
  run.feed(plan::Tensor::K, k_BLGD);
  run.feed(plan::Tensor::V, v_BLGE);
  run.feed(plan::Tensor::Q, q_BLHD);
  if (replays) {
    // Detached: what is fed may become the output, which gets a graph that holds `kept`.
    run.feed(plan::Tensor::Out, call.kept.out.detach());
    run.feed(plan::Tensor::Lse, call.kept.lse.detach());
  }
  run.finish();
  return taken;
}

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& q_BLHD,
                               const at::Tensor& k_BLGD, const at::Tensor& v_BLGE,
                               const std::optional<at::Tensor>& sinks_H,
                               const c10::intrusive_ptr<Call>& call) {
    std::unique_ptr<Execution> taken = run_forward(*call, q_BLHD, k_BLGD, v_BLGE, sinks_H);
    const Execution& run = *taken;
    variable_list results{run.output(plan::Tensor::Out)};
    if (call->programs.forward->problem.return_lse) {
      results.push_back(run.output(plan::Tensor::Lse));
    }
    if (call->options.max_logit) {
      results.push_back(max_over_ranks(run.max_logit(), *call->comm));
    }
    ctx->mark_non_differentiable({results.begin() + 1, results.end()});
    variable_list saved;
    for (const plan::Tensor tensor : kSaved) saved.push_back(run.saved(tensor));
    if (sinks_H) saved.push_back(*sinks_H);
    ctx->save_for_backward(saved);
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    RestingExecutions::of_this_thread().give_back(std::move(taken));
    return results;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto call = c10::static_intrusive_pointer_cast<Call>(ctx->saved_data["call"].toCapsule());
    return or_abort(*call->comm, [&] { return gradients(ctx, *call, grads); });
  }

 private:
  static variable_list gradients(AutogradContext* ctx, const Call& call,
                                 const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    std::optional<at::Tensor> sinks_H;
    if (saved.size() > std::size(kSaved)) sinks_H = saved.back();
    std::unique_ptr<Execution> taken = RestingExecutions::of_this_thread().take(
        call.programs.backward, *call.comm, call.options_with(sinks_H));
    Execution& run = *taken;
    for (std::size_t i = 0; i < std::size(kSaved); ++i) run.feed(kSaved[i], saved[i]);
    run.feed(plan::Tensor::DOut, grads[0]);
    run.finish();
    variable_list results{run.output(plan::Tensor::DQ), run.output(plan::Tensor::DK),
                          run.output(plan::Tensor::DV)};
    results.push_back(sinks_H ? run.sinks_grad().to(sinks_H->scalar_type()) : Variable());
    results.emplace_back();
    RestingExecutions::of_this_thread().give_back(std::move(taken));
    return results;
  }
};

plan::Dtype dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return plan::Dtype::F64;
    case at::kFloat:
      return plan::Dtype::F32;
    case at::kBFloat16:
      return plan::Dtype::Bf16;
    case at::kHalf:
      return plan::Dtype::F16;
    default:
      fail<InvalidArgument>("attention: q is {}; fp64, fp32, bf16 or fp16 is required",
                            at::toString(tensor.scalar_type()));
  }
}

void check_tensors(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD, const at::Tensor& v_BLGE) {
  for (const auto& [name, tensor] :
       {std::pair("q", &q_BLHD), std::pair("k", &k_BLGD), std::pair("v", &v_BLGE)}) {
    if (tensor->dim() != 4) {
      fail<InvalidArgument>("attention: {} has {} dims; [batch, tokens, heads, dim] is required",
                            name, tensor->dim());
    }
    if (tensor->scalar_type() != q_BLHD.scalar_type() || !tensor->device().is_cpu()) {
      fail<InvalidArgument>("attention: {} is {} on {}, q is {}; all must be alike, on the CPU",
                            name, at::toString(tensor->scalar_type()), tensor->device().str(),
                            at::toString(q_BLHD.scalar_type()));
    }
  }
  const bool alike = k_BLGD.size(0) == q_BLHD.size(0) && v_BLGE.size(0) == q_BLHD.size(0) &&
                     k_BLGD.size(1) == v_BLGE.size(1) && k_BLGD.size(2) == v_BLGE.size(2) &&
                     k_BLGD.size(3) == q_BLHD.size(3);
  if (!alike) {
    const auto shape = [](const at::Tensor& t) {
      return fmt::format("[{}]", fmt::join(t.sizes(), ", "));
    };
    fail<InvalidArgument>(
        "attention: q {}, k {}, v {}; batches, k and v tokens and heads, q and k dims must agree",
        shape(q_BLHD), shape(k_BLGD), shape(v_BLGE));
  }
}

/// Shards hold what the layout says, on this rank.
void check_tokens(std::string_view name, std::int64_t given, std::int64_t required,
                  const comm::Communicator& comm, const plan::Layout& layout) {
  if (given == required) return;
  fail<InvalidArgument>("attention: {} has {} tokens on rank {} of {}; layout {} gives it {}", name,
                        given, comm.rank(), comm.world(), to_string(layout), required);
}

bool is_number(at::ScalarType dtype) {
  return dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16 ||
         dtype == at::kHalf;
}

void check_features(const AttentionOptions& options, std::int64_t heads, bool returns_max) {
  const at::Tensor& sinks = options.sinks_H;
  if (sinks.defined() && (sinks.dim() != 1 || sinks.size(0) != heads ||
                          !is_number(sinks.scalar_type()) || !sinks.device().is_cpu())) {
    fail<InvalidArgument>(
        "attention: sinks_H is {} [{}] on {}; one logit per query head, [{}], fp64, fp32, bf16 or "
        "fp16, on the CPU, is required",
        at::toString(sinks.scalar_type()), fmt::join(sinks.sizes(), ", "), sinks.device().str(),
        heads);
  }
  if (options.return_max_logit && !returns_max) {
    fail<InvalidArgument>(
        "attention: return_max_logit is set, and only the output is returned; call "
        "sequence_parallel_attention_lse");
  }
}

kernel::Score score_of(const AttentionOptions& options, std::int64_t heads, double head_dim) {
  kernel::Score score{.scale = options.scale.value_or(1.0 / std::sqrt(head_dim)),
                      .softcap = options.softcap,
                      .alibi_slopes_H = options.alibi_slopes_H,
                      .dropout = options.dropout};
  kernel::check_score("attention", score, heads);
  kernel::check_slopes("attention", score.alibi_slopes_H, heads);
  // Backward must see the slopes of forward, whatever the caller does with its tensor.
  if (score.alibi_slopes_H.defined()) score.alibi_slopes_H = score.alibi_slopes_H.clone();
  return score;
}

c10::intrusive_ptr<Call> prepare(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                 const at::Tensor& v_BLGE, comm::Communicator& comm,
                                 const AttentionOptions& options, bool return_lse) {
  check_tensors(q_BLHD, k_BLGD, v_BLGE);
  check_features(options, q_BLHD.size(2), return_lse);
  const plan::Problem problem{.world = comm.world(),
                              .batch = q_BLHD.size(0),
                              .heads = static_cast<int>(q_BLHD.size(2)),
                              .kv_heads = static_cast<int>(k_BLGD.size(2)),
                              .head_dim = static_cast<int>(q_BLHD.size(3)),
                              .value_dim = static_cast<int>(v_BLGE.size(3)),
                              .dtype = dtype_of(q_BLHD),
                              .mask = options.mask,
                              .layout = options.layout,
                              .return_lse = return_lse,
                              .wire = options.wire};
  auto call = c10::make_intrusive<Call>();
  call->programs = compile_cached(problem, plan::parse_strategy(options.strategy), comm.rank(),
                                  kernel::cpu_kernel());
  call->comm = &comm;
  call->options = {.score = score_of(options, problem.heads, problem.head_dim),
                   .max_logit = options.return_max_logit,
                   .timeout_s = options.timeout_s};
  const CompiledProgram& forward = *call->programs.forward;
  for (const int tile : forward.program.inputs) {
    const plan::Tensor tensor = forward.program.tiles[tile].tensor;
    const at::Tensor& given = tensor == plan::Tensor::Q ? q_BLHD : k_BLGD;
    check_tokens(to_string(tensor), given.size(1), forward.shapes[tile][1], comm, options.layout);
  }
  return call;
}

std::optional<at::Tensor> sinks_of(const AttentionOptions& options) {
  return options.sinks_H.defined() ? std::optional(options.sinks_H) : std::nullopt;
}

/// A call that cannot be made on this rank ends all ranks: the others would wait for it.
c10::intrusive_ptr<Call> make_call(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                   const at::Tensor& v_BLGE, comm::Communicator& comm,
                                   const AttentionOptions& options, bool return_lse) {
  return or_abort(comm, [&] { return prepare(q_BLHD, k_BLGD, v_BLGE, comm, options, return_lse); });
}

}  // namespace

at::Tensor sequence_parallel_attention(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                       const at::Tensor& v_BLGE, comm::Communicator& comm,
                                       const AttentionOptions& options) {
  const auto call = make_call(q_BLHD, k_BLGD, v_BLGE, comm, options, false);
  return AttentionFunction::apply(q_BLHD, k_BLGD, v_BLGE, sinks_of(options), call)[0];
}

AttentionResult sequence_parallel_attention_lse(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                                const at::Tensor& v_BLGE, comm::Communicator& comm,
                                                const AttentionOptions& options) {
  const auto call = make_call(q_BLHD, k_BLGD, v_BLGE, comm, options, true);
  const variable_list results =
      AttentionFunction::apply(q_BLHD, k_BLGD, v_BLGE, sinks_of(options), call);
  return {results[0], results[1], options.return_max_logit ? results[2] : at::Tensor()};
}

KeepResult sequence_parallel_attention_keep(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                            const at::Tensor& v_BLGE, comm::Communicator& comm,
                                            const AttentionOptions& options) {
  const at::NoGradGuard no_grad;
  const auto call = make_call(q_BLHD, k_BLGD, v_BLGE, comm, options, false);
  std::unique_ptr<Execution> run = run_forward(*call, q_BLHD, k_BLGD, v_BLGE, sinks_of(options));
  KeepResult result{run->output(plan::Tensor::Out),
                    {run->saved(plan::Tensor::Out), run->saved(plan::Tensor::Lse)}};
  RestingExecutions::of_this_thread().give_back(std::move(run));
  return result;
}

at::Tensor sequence_parallel_attention_replay(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                              const at::Tensor& v_BLGE, const KeptAttention& kept,
                                              comm::Communicator& comm,
                                              const AttentionOptions& options) {
  const auto call = make_call(q_BLHD, k_BLGD, v_BLGE, comm, options, false);
  if (!kept.out.defined() || !kept.lse.defined()) {
    or_abort(comm, [] {
      fail<InvalidArgument>(
          "attention: nothing was kept for the replay; what sequence_parallel_attention_keep gives "
          "is required");
    });
  }
  call->kept = kept;
  return AttentionFunction::apply(q_BLHD, k_BLGD, v_BLGE, sinks_of(options), call)[0];
}

}  // namespace armillary::attention
