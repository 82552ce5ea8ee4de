// attention.cpp: the ops of the package.
//
//   attention_forward    q, k, v, sinks, slopes, sequence, whether the largest logits are wanted;
//                        call                                  -> out, lse, q, k, v, out as the
//                                                                 strategy saves them, the logits
//   attention_backward   d out; what forward saved, sinks, slopes; sizes; call
//                                                              -> dq, dk, dv, d sinks
//
// A saved tensor that is the caller's own is returned as an empty one of one dim, for a result of
// an op must not be one of its inputs. All kernels are boxed: they read the stack, so the schema
// stands in one place. The sequence is a digest of its numbers, and a tensor because a compiler
// would take a number for a constant of its graph.
#include "armillary/attention/attention.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "armillary/attention/node.h"
#include "armillary/core/error.h"
#include "python/src/arguments.h"
#include "python/src/errors.h"
#include "python/src/forward.h"

namespace armillary::python {
namespace {

using attention::NodeOutcome;
using attention::Tensors;
using c10::IValue;
using torch::jit::Stack;

constexpr const char* kForward = "armillary::attention_forward";
constexpr const char* kBackward = "armillary::attention_backward";

/// Inputs of forward before the call: q, k, v, sinks, slopes, sequence, max_logits.
constexpr std::size_t kInputs = 7;
/// Those of them that have no gradient.
constexpr std::size_t kConstants = 3;
/// Arguments of backward before the call: d out, q, k, v, out, lse, sinks, slopes, KV tokens of
/// this rank, KV heads.
constexpr std::size_t kGradInputs = 10;
/// Those of them that are tensors which are always there.
constexpr std::size_t kGradTensors = 6;
/// Results of backward: dq, dk, dv, d sinks.
constexpr std::size_t kGradients = 4;

/// Stands for a saved tensor that is the caller's own.
at::Tensor placeholder(const at::Tensor& like) {
  return at::empty({0}, like.options());
}

bool is_placeholder(const at::Tensor& saved) {
  return saved.dim() == 1;
}

c10::OperatorHandle op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

void forward_kernel(const c10::OperatorHandle& /*op*/, Stack* stack) {
  with_python_errors([&] {
    Call call = read_call(*stack);
    take(*stack, kCallArguments);
    const std::vector<IValue> inputs = take(*stack, kInputs);
    const attention::AttentionInputs qkv{inputs[0].toTensor(), inputs[1].toTensor(),
                                         inputs[2].toTensor()};
    call.options.sinks_H = tensor_or_none(inputs[3]);
    call.options.alibi_slopes_H = tensor_or_none(inputs[4]);
    call.options.sequence = number_of(inputs[5]);
    call.options.return_max_logit = inputs[6].toBool();
    attention::AttentionResults result;
    on_group(call.group, [&](comm::Communicator& comm) {
      result = attention::Attention(comm, std::move(call.options))
                   .run(attention::CallKind::Functional, qkv);
    });
    push_forward(*stack, result);
  });
}

void backward_kernel(const c10::OperatorHandle& /*op*/, Stack* stack) {
  with_python_errors([&] {
    Call call = read_call(*stack);
    take(*stack, kCallArguments);
    const std::vector<IValue> inputs = take(*stack, kGradInputs);
    const at::Tensor& dout = inputs[0].toTensor();
    const attention::SavedAttention saved{inputs[1].toTensor(), inputs[2].toTensor(),
                                          inputs[3].toTensor(), inputs[4].toTensor(),
                                          inputs[5].toTensor()};
    call.options.sinks_H = tensor_or_none(inputs[6]);
    call.options.alibi_slopes_H = tensor_or_none(inputs[7]);
    const attention::AttentionShape shape{.batch = dout.size(0),
                                          .q_tokens = dout.size(1),
                                          .kv_tokens = inputs[8].toInt(),
                                          .heads = dout.size(2),
                                          .kv_heads = inputs[9].toInt(),
                                          .head_dim = saved.q.size(3),
                                          .value_dim = dout.size(3),
                                          .dtype = dout.scalar_type()};
    attention::AttentionGradients gradients;
    on_group(call.group, [&](comm::Communicator& comm) {
      gradients = attention::Attention(comm, std::move(call.options)).backward(saved, dout, shape);
    });
    const at::Tensor dsinks = gradients.dsinks_H.defined() ? gradients.dsinks_H : placeholder(dout);
    torch::jit::push(*stack, gradients.dq_BLHD, gradients.dk_BLGD, gradients.dv_BLGE, dsinks);
  });
}

/// The results of an op, which are all that lies on the stack.
Tensors tensors_of(const Stack& stack) {
  Tensors results;
  for (const IValue& result : stack) results.push_back(result.toTensor());
  return results;
}

/// Calls an op with all that lies on the stack.
Tensors results_of(const char* name, Stack& stack) {
  op(name).callBoxed(&stack);
  return tensors_of(stack);
}

/// The inputs of a node as the arguments of an op.
Stack stack_of(at::TensorList tensors, const std::optional<at::Tensor>& sinks,
               const std::vector<IValue>& rest) {
  Stack stack;
  for (const at::Tensor& tensor : tensors) stack.emplace_back(tensor);
  stack.emplace_back(sinks);
  stack.insert(stack.end(), rest.begin(), rest.end());
  return stack;
}

/// Refuses second derivatives in the backward of forward: saved tensors in the strategy's form have
/// no graph, so autograd would silently lose a part of them later.
void refuse_graph_of_gradient(const std::string& call) {
  with_python_errors([&] {
    refuse_on_group({.name = call_of(call).group.name},
                    "attention: a graph of the gradient was asked for (create_graph=True); only "
                    "first derivatives exist: call backward without it");
  });
}

/// Backward of forward: the op. `rest`: its arguments behind the slopes.
Tensors gradients_by_op(const Tensors& saved, const at::Tensor& dout,
                        const std::vector<IValue>& rest) {
  if (at::GradMode::is_enabled()) {
    refuse_graph_of_gradient((rest.end() - kCallArguments)->toStringRef());
  }
  Stack stack{IValue(dout)};
  for (std::size_t i = 0; i < 5; ++i) stack.emplace_back(saved[i]);
  for (std::size_t i = 5; i < 7; ++i) {
    stack.push_back(saved[i].defined() ? IValue(saved[i]) : IValue());
  }
  stack.insert(stack.end(), rest.begin(), rest.end());
  Tensors results = results_of(kBackward, stack);
  if (!saved[5].defined()) results.back() = at::Tensor();
  return results;
}

/// Forward in the graph. `results`: those of the op; `rest`: its arguments behind the sinks.
NodeOutcome outcome_of(Tensors results, at::TensorList qkv, const std::optional<at::Tensor>& sinks,
                       const std::vector<IValue>& rest) {
  // Keep the strategy's own tensors where it has some, else those of the caller.
  const at::Tensor callers[] = {qkv[0], qkv[1], qkv[2], results[0]};
  Tensors saved;
  for (std::size_t i = 0; i < 4; ++i) {
    const bool is_callers = is_placeholder(results[2 + i]);
    saved.push_back(is_callers ? callers[i] : results[2 + i]);
  }
  saved.push_back(results[1]);
  saved.push_back(sinks.value_or(at::Tensor()));
  saved.push_back(tensor_or_none(rest[0]));
  std::vector<IValue> later{IValue(qkv[1].sym_size(1)), IValue(qkv[1].sym_size(2))};
  later.insert(later.end(), rest.begin() + kConstants, rest.end());
  return {.results = std::move(results),
          .saved = std::move(saved),
          .backward = [later = std::move(later)](const attention::Unpack& unpack,
                                                 const at::Tensor& dout) {
            return gradients_by_op(unpack(), dout, later);
          }};
}

/// Backward of the op of backward, for callers of that op: it refuses second derivatives.
Tensors refuse_second_derivative(const attention::Unpack& /*saved*/, const at::Tensor& /*dout*/) {
  return with_python_errors([]() -> Tensors {
    fail<InvalidArgument>(
        "attention: a second derivative was asked for; only first ones exist: call backward "
        "without create_graph=True");
  });
}

/// The arguments of a node, taken from the stack: `tensors`, then the sinks, then `rest` others.
struct NodeInputs {
  NodeInputs(Stack& stack, std::size_t tensor_count, std::size_t rest_count)
      : rest(take(stack, rest_count)) {
    if (const at::Tensor argument = tensor_or_none(take(stack, 1).front()); argument.defined()) {
      sinks = argument;
    }
    for (const IValue& value : take(stack, tensor_count)) tensors.push_back(value.toTensor());
  }
  std::vector<IValue> rest;
  std::optional<at::Tensor> sinks;
  Tensors tensors;
};

void push_all(Stack* stack, Tensors results) {
  for (at::Tensor& result : results) stack->emplace_back(std::move(result));
}

void forward_autograd(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const NodeInputs inputs(*stack, 3, kConstants + kCallArguments);
  const ForwardRun run = [](Stack& below) { op(kForward).callBoxed(&below); };
  push_all(stack, forward_in_graph(inputs.tensors, inputs.sinks, inputs.rest, run));
}

void backward_autograd(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const NodeInputs inputs(*stack, kGradTensors, kGradInputs - kGradTensors - 1 + kCallArguments);
  const auto forward = [&]() -> NodeOutcome {
    const at::AutoDispatchBelowADInplaceOrView below;
    Stack arguments = stack_of(inputs.tensors, inputs.sinks, inputs.rest);
    return {.results = results_of(kBackward, arguments),
            .saved = {},
            .backward = &refuse_second_derivative,
            .differentiable = kGradients};
  };
  push_all(stack, attention::in_graph(inputs.tensors, inputs.sinks, forward));
}

/// Casts q, k and v as autocast does it for scaled_dot_product_attention: fp64 stays. Sinks and
/// slopes stay what they are, for they join scores in fp32.
void forward_autocast(const c10::OperatorHandle& op, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::autocast_dispatch_keyset);
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(at::kCPU);
  const auto inputs = stack->end() - kCallArguments - kInputs;
  for (auto argument = inputs; argument != inputs + 3; ++argument) {
    *argument = at::autocast::cached_cast(dtype, argument->toTensor(), at::kCPU);
  }
  op.callBoxed(stack);
}

using Boxed = torch::CppFunction;

}  // namespace

void push_forward(Stack& stack, const attention::AttentionResults& result) {
  const attention::SavedAttention& saved = result.saved;
  const auto own = [&](std::size_t i, const at::Tensor& tensor) {
    return result.is_own[i] ? tensor : placeholder(tensor);
  };
  const at::Tensor& max = result.max_logit_H;
  torch::jit::push(stack, result.out_BLHE, saved.lse, own(0, saved.q), own(1, saved.k),
                   own(2, saved.v), own(3, saved.out),
                   max.defined() ? max : placeholder(saved.lse));
}

Tensors forward_in_graph(at::TensorList qkv, const std::optional<at::Tensor>& sinks,
                         const std::vector<IValue>& rest, const ForwardRun& run) {
  return attention::in_graph(qkv, sinks, [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    Stack stack = stack_of(qkv, sinks, rest);
    run(stack);
    return outcome_of(tensors_of(stack), qkv, sinks, rest);
  });
}

TORCH_LIBRARY(armillary, library) {
  const std::string call = kCallSchema;
  const std::string forward =
      "attention_forward(Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor? alibi_slopes, "
      "Tensor? sequence, bool max_logits, " +
      call +
      ") -> (Tensor out, Tensor lse, Tensor q_saved, Tensor k_saved, Tensor v_saved, Tensor "
      "out_saved, Tensor max_logits)";
  const std::string backward =
      "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
      "Tensor? sinks, Tensor? alibi_slopes, SymInt kv_tokens, SymInt kv_heads, " +
      call + ") -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsinks)";
  library.def(forward.c_str());
  library.def(backward.c_str());
}

TORCH_LIBRARY_IMPL(armillary, CompositeExplicitAutograd, library) {
  library.impl("attention_forward", Boxed::makeFromBoxedFunction<&forward_kernel>());
  library.impl("attention_backward", Boxed::makeFromBoxedFunction<&backward_kernel>());
}

TORCH_LIBRARY_IMPL(armillary, Autograd, library) {
  library.impl("attention_forward", Boxed::makeFromBoxedFunction<&forward_autograd>());
  library.impl("attention_backward", Boxed::makeFromBoxedFunction<&backward_autograd>());
}

TORCH_LIBRARY_IMPL(armillary, AutocastCPU, library) {
  library.impl("attention_forward", Boxed::makeFromBoxedFunction<&forward_autocast>());
}

}  // namespace armillary::python
