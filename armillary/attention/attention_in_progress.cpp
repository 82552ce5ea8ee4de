// attention_in_progress.cpp: begin, feed and finish of a call, and its place in the autograd graph.
//
// Tensors are fed to the run of the call as soon as they are given, in no-grad mode. The node
// (node.h) enters the graph only at the end of finish, with q, k and v, so gradients reach those
// three although k and v were fed before.
#include "armillary/attention/attention_in_progress.h"

#include <ATen/FuncTorchTLS.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "armillary/attention/attention_call.h"
#include "armillary/attention/node.h"
#include "armillary/comm/collectives.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/runtime/or_abort.h"

namespace armillary::attention {
namespace {

/// The largest logits of all ranks after a finished run, [H], the same bits on each of them. A NaN
/// wins. Collective.
at::Tensor max_over_ranks(comm::Communicator& comm, const runtime::Execution& finished) {
  const at::Tensor& mine_H = finished.max_logit();
  // A number per head: not worth the way from device to device.
  const at::Tensor host_H = mine_H.cpu();
  const at::Tensor all_PH = at::empty({comm.world(), host_H.size(0)}, host_H.options());
  const auto bytes = [](const at::Tensor& x) {
    return std::span(static_cast<std::byte*>(x.data_ptr()), x.nbytes());
  };
  comm::all_gather(comm, bytes(host_H), bytes(all_PH));
  return all_PH.amax(0).to(mine_H.device());
}

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
  if (call.options.max_logit) results.push_back(max_over_ranks(*call.comm, run));
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

/// The number of writes to a tensor, where they are counted.
std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

void feed(AttentionCall& call, plan::Tensor tensor, const at::Tensor& value) {
  const at::Device place = call.rank->device().place();
  if (value.device() != place) {
    fail<InvalidArgument>("attention: {} is on {}; {} is required, where the group computes",
                          to_string(tensor), value.device().str(), place.str());
  }
  const at::NoGradGuard no_grad;
  call.run->feed(tensor, value);
}

/// Feeds k or v before the other inputs. Waits for the agreement: messages cannot leave before it,
/// and the caller comes back only after its next projection.
void feed_ahead(AttentionCall& call, plan::Tensor tensor, const at::Tensor& value, FedTensor& fed) {
  call.agree();
  call.wait_for_agreement();
  feed(call, tensor, value.detach());
  fed = {.value = value, .version = version_of(value)};
}

/// Takes an execution for forward or replay, and marks the group as busy. A replay is fed the kept
/// output at once.
void start(AttentionCall& call, const AttentionOptions& options, const KeptAttention& kept_output) {
  const bool replays = call.kind == CallKind::Replay;
  const at::NoGradGuard no_grad;
  if (options.sinks_H.defined()) call.sinks_H = options.sinks_H;
  runtime::ExecutionOptions with = call.options_with(call.sinks_H);
  with.gate = &*call.agreement;
  const auto& program = replays ? call.programs->replay : call.programs->forward;
  call.run = call.rank->executions().take(program, *call.comm, std::move(with));
  call.group->busy = true;
  if (!replays) return;
  call.agree();
  // Detached: the fed tensor may become the output, whose graph will hold `kept_output`; a graph
  // that holds its own output would never be freed.
  call.run->feed(plan::Tensor::Out, kept_output.out.detach());
  call.run->feed(plan::Tensor::Lse, kept_output.lse.detach());
}

/// Refuses k or v other than fed, or written to since, and shapes other than begun.
void check_began_with(const AttentionCall& call, const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                      const at::Tensor& v_BLGE) {
  for (const auto& [name, fed, argument] :
       {std::tuple("k", &call.k_BLGD, &k_BLGD), std::tuple("v", &call.v_BLGE, &v_BLGE)}) {
    if (!fed->value.defined()) continue;
    if (!is_same_memory(fed->value, *argument)) {
      fail<InvalidArgument>(
          "attention: finish is given another {} than was fed; the same memory is required", name);
    }
    if (version_of(fed->value) != fed->version) {
      fail<InvalidArgument>(
          "attention: finish: {} was written to after it was fed; what was fed is required", name);
    }
  }
  const AttentionShape& shape = call.shape;
  if (attention_shape_of(q_BLHD, k_BLGD, v_BLGE) != shape) {
    fail<InvalidArgument>("attention: finish is given q {} [{}]; {} [{}, {}, {}, {}] was begun",
                          at::toString(q_BLHD.scalar_type()), fmt::join(q_BLHD.sizes(), ", "),
                          at::toString(shape.dtype), shape.batch, shape.q_tokens, shape.heads,
                          shape.head_dim);
  }
}

AttentionResults attention_results(const AttentionCall& call, const Tensors& results) {
  return {.out_BLHE = results[0],
          .lse_BLH = call.kind == CallKind::AttentionLse ? results[1] : at::Tensor(),
          .max_logit_H = call.options.max_logit ? results.back() : at::Tensor()};
}

/// The end of a call whose results have no gradient.
AttentionResults finished_without_node(AttentionCall& call, const at::Tensor& q_BLHD) {
  const at::NoGradGuard no_grad;
  std::unique_ptr<runtime::Execution> run = finished_run(call, q_BLHD);
  AttentionResults results = attention_results(call, results_of(call, *run));
  if (call.kind == CallKind::Keep) {
    results.kept_output = {run->saved(plan::Tensor::Out), run->saved(plan::Tensor::Lse)};
  }
  if (call.kind == CallKind::Functional) {
    const auto saved = [&](plan::Tensor tensor) { return run->saved(tensor); };
    results.saved = {.q = saved(plan::Tensor::Q),
                     .k = saved(plan::Tensor::K),
                     .v = saved(plan::Tensor::V),
                     .out = saved(plan::Tensor::Out),
                     .lse = saved(plan::Tensor::Lse)};
    results.is_own = is_own_of(call.programs->forward->program);
  }
  call.rank->executions().give_back(std::move(run));
  return results;
}

/// Feeds the inputs that were not fed. Q is fed last, inside the node if there is one.
AttentionResults finished(const std::shared_ptr<AttentionCall>& call, const at::Tensor& q_BLHD,
                          const at::Tensor& k_BLGD, const at::Tensor& v_BLGE) {
  check_began_with(*call, q_BLHD, k_BLGD, v_BLGE);
  call->agree();
  if (!call->k_BLGD.value.defined()) feed(*call, plan::Tensor::K, k_BLGD);
  if (!call->v_BLGE.value.defined()) feed(*call, plan::Tensor::V, v_BLGE);
  const at::Tensor qkv[] = {q_BLHD, k_BLGD, v_BLGE};
  const std::optional<at::Tensor> sinks_H = call->sinks_H;  // The call lets go of it.
  const bool has_node = call->kind != CallKind::Keep && call->kind != CallKind::Functional;
  if (!has_node || !needs_node(qkv, sinks_H)) return finished_without_node(*call, q_BLHD);
  return attention_results(
      *call, in_graph(qkv, sinks_H, [&] { return outcome_of(call, q_BLHD, sinks_H); }));
}

/// Returns action(), which aborts the group if it throws; but if the call was dropped, for then the
/// group may be gone.
template <class Action>
decltype(auto) while_in_progress(AttentionCall& call, const Action& action) {
  if (call.is_dropped) call.check_in_progress();
  return runtime::or_abort(*call.comm, [&] {
    call.check_in_progress();
    return action();
  });
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

AttentionInProgress::AttentionInProgress(std::shared_ptr<AttentionCall> call)
    : call_(std::move(call)) {}
AttentionInProgress::AttentionInProgress(AttentionInProgress&& other) noexcept = default;
AttentionInProgress::~AttentionInProgress() = default;

AttentionInProgress AttentionInProgress::begin(CallKind kind, const AttentionShape& shape,
                                               comm::Communicator& comm,
                                               const AttentionOptions& options,
                                               const KeptAttention& kept_output) {
  // A call that this rank cannot make aborts the group: the others would wait for it.
  auto call = runtime::or_abort(
      comm, [&] { return prepare_call(kind, shape, comm, options, kept_output); });
  // In a second or_abort, while `call` lives: the first abort gives the reason, and its end would
  // say only that it was dropped.
  runtime::or_abort(comm, [&] { start(*call, options, kept_output); });
  return AttentionInProgress(std::move(call));
}

void AttentionInProgress::feed_k(const at::Tensor& k_BLGD) {
  while_in_progress(*call_, [&] { feed_ahead(*call_, plan::Tensor::K, k_BLGD, call_->k_BLGD); });
}

void AttentionInProgress::feed_v(const at::Tensor& v_BLGE) {
  while_in_progress(*call_, [&] { feed_ahead(*call_, plan::Tensor::V, v_BLGE, call_->v_BLGE); });
}

AttentionResults AttentionInProgress::finish(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                             const at::Tensor& v_BLGE) {
  return while_in_progress(*call_, [&] { return finished(call_, q_BLHD, k_BLGD, v_BLGE); });
}

void AttentionInProgress::drop(const std::string& reason) {
  call_->drop(reason);
}

bool AttentionInProgress::is_over() const {
  return !call_->run;
}

void AttentionInProgress::check_in_progress() const {
  call_->check_in_progress();
}

}  // namespace armillary::attention
