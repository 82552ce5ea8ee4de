#include "armillary/attention/attention_call.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/proof/verdict.h"

namespace armillary::attention {
namespace {

plan::Dtype plan_dtype(at::ScalarType dtype) {
  switch (dtype) {
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
                            at::toString(dtype));
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

void check_features(const AttentionOptions& options, std::int64_t heads, bool returns_max,
                    at::Device place) {
  const at::Tensor& sinks = options.sinks_H;
  if (sinks.defined() && (sinks.dim() != 1 || sinks.size(0) != heads ||
                          !is_number(sinks.scalar_type()) || sinks.device() != place)) {
    fail<InvalidArgument>(
        "attention: sinks_H is {} [{}] on {}; one logit per query head, [{}], fp64, fp32, bf16 or "
        "fp16, on {}, is required",
        at::toString(sinks.scalar_type()), fmt::join(sinks.sizes(), ", "), sinks.device().str(),
        heads, place.str());
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

void check_kept(const KeptAttention& kept) {
  if (kept.out.defined() && kept.lse.defined()) return;
  fail<InvalidArgument>(
      "attention: nothing was kept for the replay; what sequence_parallel_attention_keep gives is "
      "required");
}

/// Looked up once for as long as the description is kept.
std::shared_ptr<const runtime::CompiledAttention> programs_for(Described& asked, plan::Rank rank,
                                                               const kernel::Kernel& kernel) {
  if (!asked.programs || asked.programs->forward->kernel != &kernel) {
    asked.programs = runtime::compile_cached(
        asked.problem, asked.strategy ? *asked.strategy : plan::parse_strategy(asked.strategy_text),
        rank, kernel);
  }
  return asked.programs;
}

/// All that one rank can refuse by itself.
void check_and_compile(AttentionCall& call, Described& asked, const AttentionShape& shape,
                       const AttentionOptions& options) {
  const plan::Problem& problem = asked.problem;
  check_features(options, shape.heads, problem.return_lse, call.context->device().place());
  if (options.timeout_s && !(*options.timeout_s > 0 && *options.timeout_s <= 1e9)) {
    fail<InvalidArgument>("attention: timeout_s is {}; more than 0 and at most 1e9 s is required",
                          *options.timeout_s);
  }
  call.options = {.score = score_of(options, problem.heads, problem.head_dim),
                  .max_logit = options.return_max_logit,
                  .timeout_s = options.timeout_s};
  call.programs = programs_for(asked, call.comm->rank(), call.context->device().kernel());
  const runtime::CompiledProgram& forward = *call.programs->forward;
  for (const int tile : forward.program.inputs) {
    const plan::Tensor tensor = forward.program.tiles[tile].tensor;
    const std::int64_t given = tensor == plan::Tensor::Q ? shape.q_tokens : shape.kv_tokens;
    check_tokens(to_string(tensor), given, forward.shapes[tile][1], *call.comm, options.layout);
  }
}

constexpr std::array<std::string_view, 4> kNames{"attention", "attention_lse", "keep", "replay"};

}  // namespace

std::shared_ptr<const runtime::CompiledProgram> AttentionCall::backward() const {
  const kernel::Kernel& kernel = context->device().kernel();
  if (programs->forward->kernel == &kernel) return programs->backward;
  const plan::Planner& planner = programs->proved.planner;
  return runtime::compile_cached(planner.problem(), planner.strategy(), comm->rank(), kernel)
      ->backward;
}

runtime::ExecutionOptions AttentionCall::options_with(
    const std::optional<at::Tensor>& sinks_H) const {
  runtime::ExecutionOptions with = options;
  with.device = &context->device();  // of today: that of forward may be gone
  if (sinks_H) {
    const bool fp64 = programs->forward->problem.dtype == plan::Dtype::F64;
    with.sinks_H = sinks_H->detach().to(fp64 ? at::kDouble : at::kFloat);
  }
  return with;
}

void AttentionCall::start(const std::shared_ptr<const runtime::CompiledProgram>& program,
                          const std::optional<at::Tensor>& sinks_H) {
  runtime::ExecutionOptions with = options_with(sinks_H);
  with.gate = agreement.get();
  run = context->executions().take(program, *comm, std::move(with));
  context->set_busy(true);
}

void AttentionCall::agree() {
  // As long as a round takes where all ranks are there: then messages leave before compute begins.
  constexpr double kBrief = 50e-6;  // seconds
  if (may_run) {
    agreement->opens_within(kBrief);
    return;
  }
  agreement->wait();
  proof::prove_together(*comm, programs->proved, proofs);
  may_run = true;
}

std::unique_ptr<runtime::Execution> AttentionCall::end() {
  context->set_busy(false);
  agreement.reset();
  return std::move(run);
}

void check_no_call_in_progress(const runtime::Context& context, int rank) {
  if (!context.is_busy()) return;
  fail<InvalidArgument>(
      "attention: another call is in progress on rank {}; finish it before the next begins", rank);
}

c10::intrusive_ptr<AttentionCall> prepare_call(CallKind kind, const AttentionShape& shape,
                                               comm::Communicator& comm,
                                               const AttentionOptions& options,
                                               const KeptAttention& kept) {
  runtime::Context& context = runtime::Context::of(comm);
  check_no_call_in_progress(context, comm.rank());
  const plan::Problem problem{.world = comm.world(),
                              .batch = shape.batch,
                              .heads = static_cast<int>(shape.heads),
                              .kv_heads = static_cast<int>(shape.kv_heads),
                              .head_dim = static_cast<int>(shape.head_dim),
                              .value_dim = static_cast<int>(shape.value_dim),
                              .dtype = plan_dtype(shape.dtype),
                              .mask = options.mask,
                              .layout = options.layout,
                              .return_lse = kind == CallKind::AttentionLse,
                              .wire = options.wire};
  auto call = c10::make_intrusive<AttentionCall>();
  call->comm = &comm;
  call->context = &context;
  call->proofs = options.proofs;
  Described& asked = comm.attachment<RecentCalls>().described(problem, options.strategy);
  proof::Verdict refusal;
  try {
    if (kind == CallKind::Replay) check_kept(kept);
    check_and_compile(*call, asked, shape, options);
    call->may_run = proof::is_proved(comm, call->programs->proved);
  } catch (const InvalidArgument& error) {
    refusal.raise(proof::Finding::RefusedInput, error.what());
  } catch (const PlanError& error) {
    refusal.raise(proof::Finding::RefusedPlan, error.what());
  }
  call->agreement = std::make_unique<Agreement>(
      comm,
      Asked{.call = kNames[static_cast<std::size_t>(kind)],
            .key = asked.key,
            .problem = asked.words,
            .scale = options.scale.value_or(1.0 / std::sqrt(problem.head_dim)),
            .options = options},
      refusal);
  if (refusal.finding == proof::Finding::Fine) return call;
  // Its peers are told, and perhaps the reason is that they are asked for something else.
  constexpr double kLongestWaitForPeers = 10;  // seconds
  call->agreement->opens_within(std::min(comm.timeout_s(), kLongestWaitForPeers));
  comm.abort(refusal.text);  // For those that come late.
  proof::throw_verdict(refusal);
}

}  // namespace armillary::attention
