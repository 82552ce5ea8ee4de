// attention_in_progress.cpp: begin, feed and finish of a call, and its place in the autograd graph.
//
// State holds the call and drives its run: tensors are fed to the execution as soon as they are
// given, in no-grad mode. The node (node.h) enters the graph only at the end of finish, with q, k
// and v, so gradients reach those three although k and v were fed before.
#include "armillary/attention/attention_in_progress.h"

#include <ATen/FuncTorchTLS.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "armillary/attention/attention_call.h"
#include "armillary/attention/node.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/runtime/or_abort.h"

namespace armillary::attention {
namespace {

/// Feeds q, the last input, runs the call to its end and takes the execution out of it.
std::unique_ptr<runtime::Execution> finished_run(AttentionCall& call, const at::Tensor& q_BLHD) {
  call.run->feed(plan::Tensor::Q, q_BLHD);
  call.run->finish();
  return call.end();
}

/// Results of a finished run: out, then log-sum-exp and largest logits if they were asked for.
Tensors results_of(const AttentionCall& call, const runtime::Execution& run) {
  Tensors results{run.output(plan::Tensor::Out)};
  if (call.programs->forward->problem.return_lse) {
    results.push_back(run.output(plan::Tensor::Lse));
  }
  if (call.options.max_logit) results.push_back(call.max_over_ranks(run));
  return results;
}

/// Backward as the node of the graph computes it. Sinks are the last saved tensor, behind those of
/// kSaved.
Tensors gradients_of(const AttentionCall& call, const Unpack& unpack, const at::Tensor& dout) {
  return runtime::or_abort(*call.comm, [&] {
    check_no_call_in_progress(*call.group, call.comm->rank());
    const Tensors saved = unpack();
    std::optional<at::Tensor> sinks_H;
    if (saved.size() > std::size(kSaved)) sinks_H = saved.back();
    return call.run_backward(saved, dout, sinks_H);
  });
}

/// Forward as the node of the graph computes it. K and V were fed before; they are inputs of the
/// node for their gradients.
NodeOutcome outcome_of(const std::shared_ptr<AttentionCall>& call, const at::Tensor& q_BLHD,
                       const std::optional<at::Tensor>& sinks_H) {
  std::unique_ptr<runtime::Execution> run = finished_run(*call, q_BLHD);
  NodeOutcome outcome{.results = results_of(*call, *run),
                      .saved = {},
                      .backward = [call](const Unpack& saved, const at::Tensor& dout) {
                        return gradients_of(*call, saved, dout);
                      }};
  // Keep what backward needs, and give the execution and its slots to the next call.
  for (const plan::Tensor tensor : kSaved) outcome.saved.push_back(run->saved(tensor));
  if (sinks_H) outcome.saved.push_back(*sinks_H);
  call->rank->executions().give_back(std::move(run));
  return outcome;
}

/// Whether the graph has to know of the call: autograd follows one of its inputs, or a transform of
/// autograd is active, which refuses nodes of C++.
bool needs_node(at::TensorList qkv, const std::optional<at::Tensor>& sinks_H) {
  const auto is_followed = [](const at::Tensor& x) {
    return (at::GradMode::is_enabled() && x.requires_grad()) || x._fw_grad(/*level=*/0).defined();
  };
  return std::ranges::any_of(qkv, is_followed) || (sinks_H && is_followed(*sinks_H)) ||
         at::functorch::functorchTLSAccessor() != nullptr;
}

/// Whether both show the same elements of the same storage; their graphs may differ.
bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

}  // namespace

AttentionShape attention_shape_of(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                  const at::Tensor& v_BLGE) {
  for (const auto& [name, tensor] :
       {std::pair("q", &q_BLHD), std::pair("k", &k_BLGD), std::pair("v", &v_BLGE)}) {
    if (tensor->dim() != 4) {
      fail<InvalidArgument>("attention: {} has {}; [batch, tokens, heads, dim] is required", name,
                            count_of(tensor->dim(), "dim"));
    }
    if (tensor->scalar_type() != q_BLHD.scalar_type() || tensor->device() != q_BLHD.device()) {
      fail<InvalidArgument>("attention: {} is {} on {}, q is {} on {}; all must be alike", name,
                            at::toString(tensor->scalar_type()), tensor->device().str(),
                            at::toString(q_BLHD.scalar_type()), q_BLHD.device().str());
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
  return {.batch = q_BLHD.size(0),
          .q_tokens = q_BLHD.size(1),
          .kv_tokens = k_BLGD.size(1),
          .heads = q_BLHD.size(2),
          .kv_heads = k_BLGD.size(2),
          .head_dim = q_BLHD.size(3),
          .value_dim = v_BLGE.size(3),
          .dtype = q_BLHD.scalar_type()};
}

/// The call and the tensors fed so far. Destroyed while the run is in progress, it aborts the
/// group.
struct AttentionInProgress::State {
  CallKind kind;
  AttentionShape shape;
  std::shared_ptr<AttentionCall> call;
  std::optional<at::Tensor> sinks_H;
  at::Tensor k_BLGD = {};  ///< As it was fed, without its graph; undefined before.
  at::Tensor v_BLGE = {};

  State(CallKind kind, const AttentionShape& shape, comm::Communicator& comm,
        const AttentionOptions& options, const KeptAttention& kept)
      : kind(kind), shape(shape), call(prepare_call(kind, shape, comm, options, kept)) {
    if (options.sinks_H.defined()) sinks_H = options.sinks_H;
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (!call->run) return;
    call->comm->abort("attention: a call was dropped before it had finished");
    call->end();
  }

  /// Takes an execution for forward or replay. A replay is fed the kept output at once.
  void start(const KeptAttention& kept) {
    const bool replays = kind == CallKind::Replay;
    const at::NoGradGuard no_grad;
    call->start(replays ? call->programs->replay : call->programs->forward, sinks_H);
    if (!replays) return;
    call->agree();
    // Detached: the fed tensor may become the output, whose graph will hold `kept`; a graph that
    // holds its own output would never be freed.
    call->run->feed(plan::Tensor::Out, kept.out.detach());
    call->run->feed(plan::Tensor::Lse, kept.lse.detach());
  }

  /// Feeds k or v before the other inputs. Waits for the agreement: messages cannot leave before
  /// it, and the caller comes back only after its next projection.
  void feed_ahead(plan::Tensor tensor, const at::Tensor& value, at::Tensor& fed) {
    check_runs();
    call->agree();
    call->wait_for_agreement();
    fed = value.detach();
    feed(tensor, fed);
  }

  void feed(plan::Tensor tensor, const at::Tensor& value) {
    const at::Device place = call->rank->device().place();
    if (value.device() != place) {
      fail<InvalidArgument>("attention: {} is on {}; {} is required, where the group computes",
                            to_string(tensor), value.device().str(), place.str());
    }
    const at::NoGradGuard no_grad;
    call->run->feed(tensor, value);
  }

  /// Feeds the inputs that were not fed. Q is fed last, inside the node or by finish_without_node.
  AttentionResults finish(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                          const at::Tensor& v_BLGE) {
    check_runs();
    check_began_with(q_BLHD, k_BLGD, v_BLGE);
    call->agree();
    if (!this->k_BLGD.defined()) feed(plan::Tensor::K, k_BLGD);
    if (!this->v_BLGE.defined()) feed(plan::Tensor::V, v_BLGE);
    const at::Tensor qkv[] = {q_BLHD, k_BLGD, v_BLGE};
    const bool has_node = kind != CallKind::Keep && kind != CallKind::Functional;
    if (!has_node || !needs_node(qkv, sinks_H)) return finish_without_node(q_BLHD);
    return named(in_graph(qkv, sinks_H, [&] { return outcome_of(call, q_BLHD, sinks_H); }));
  }

  /// The end of a call whose results have no gradient.
  AttentionResults finish_without_node(const at::Tensor& q_BLHD) const {
    const at::NoGradGuard no_grad;
    std::unique_ptr<runtime::Execution> run = finished_run(*call, q_BLHD);
    AttentionResults results = named(results_of(*call, *run));
    if (kind == CallKind::Keep) {
      results.kept = {run->saved(plan::Tensor::Out), run->saved(plan::Tensor::Lse)};
    }
    if (kind == CallKind::Functional) {
      const auto saved = [&](plan::Tensor tensor) { return run->saved(tensor); };
      results.saved = {.q = saved(plan::Tensor::Q),
                       .k = saved(plan::Tensor::K),
                       .v = saved(plan::Tensor::V),
                       .out = saved(plan::Tensor::Out),
                       .lse = saved(plan::Tensor::Lse)};
      results.is_own = is_own_of(call->programs->forward->program);
    }
    call->rank->executions().give_back(std::move(run));
    return results;
  }

  AttentionResults named(const Tensors& results) const {
    return {.out_BLHE = results[0],
            .lse_BLH = kind == CallKind::AttentionLse ? results[1] : at::Tensor(),
            .max_logit_H = call->options.max_logit ? results.back() : at::Tensor()};
  }

  void check_runs() const {
    if (!call->run) fail<InvalidArgument>("attention: the call is over; begin another one");
  }

  /// Refuses k or v other than fed, and shapes other than begun.
  void check_began_with(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                        const at::Tensor& v_BLGE) const {
    for (const auto& [name, fed, given] :
         {std::tuple("k", &this->k_BLGD, &k_BLGD), std::tuple("v", &this->v_BLGE, &v_BLGE)}) {
      if (!fed->defined() || is_same_memory(*fed, *given)) continue;
      fail<InvalidArgument>(
          "attention: finish is given another {} than was fed; the same memory "
          "is required",
          name);
    }
    if (attention_shape_of(q_BLHD, k_BLGD, v_BLGE) != shape) {
      fail<InvalidArgument>("attention: finish is given q {} [{}]; {} [{}, {}, {}, {}] was begun",
                            at::toString(q_BLHD.scalar_type()), fmt::join(q_BLHD.sizes(), ", "),
                            at::toString(shape.dtype), shape.batch, shape.q_tokens, shape.heads,
                            shape.head_dim);
    }
  }
};

AttentionInProgress::AttentionInProgress(std::unique_ptr<State> state) : state_(std::move(state)) {}
AttentionInProgress::AttentionInProgress(AttentionInProgress&& other) noexcept = default;
AttentionInProgress::~AttentionInProgress() = default;

AttentionInProgress AttentionInProgress::begin(CallKind kind, const AttentionShape& shape,
                                               comm::Communicator& comm,
                                               const AttentionOptions& options,
                                               const KeptAttention& kept) {
  // A call that this rank cannot make aborts the group: the others would wait for it.
  auto state = runtime::or_abort(
      comm, [&] { return std::make_unique<State>(kind, shape, comm, options, kept); });
  // In a second or_abort, while `state` lives: the first abort gives the reason, and ~State would
  // say only that the call was dropped.
  runtime::or_abort(comm, [&] { state->start(kept); });
  return AttentionInProgress(std::move(state));
}

void AttentionInProgress::feed_k(const at::Tensor& k_BLGD) {
  runtime::or_abort(*state_->call->comm,
                    [&] { state_->feed_ahead(plan::Tensor::K, k_BLGD, state_->k_BLGD); });
}

void AttentionInProgress::feed_v(const at::Tensor& v_BLGE) {
  runtime::or_abort(*state_->call->comm,
                    [&] { state_->feed_ahead(plan::Tensor::V, v_BLGE, state_->v_BLGE); });
}

AttentionResults AttentionInProgress::finish(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                             const at::Tensor& v_BLGE) {
  return runtime::or_abort(*state_->call->comm,
                           [&] { return state_->finish(q_BLHD, k_BLGD, v_BLGE); });
}

}  // namespace armillary::attention
