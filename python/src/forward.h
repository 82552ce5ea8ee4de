// forward.h: forward as a node of the autograd graph, whatever computes it: the op, or a call whose
// inputs came one by one. Its backward is the op attention_backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <functional>
#include <optional>
#include <vector>

#include "armillary/attention/attention.h"

namespace armillary::python {

/// Replaces the arguments of the op attention_forward on the stack by its results.
using ForwardRun = std::function<void(torch::jit::Stack&)>;

/// Pushes a result in the form of the op's.
void push_forward(torch::jit::Stack& stack, const attention::AttentionResults& result);

/// The results of `run` in the graph. `rest`: the arguments of the op behind the sinks.
std::vector<at::Tensor> forward_in_graph(at::TensorList qkv, const std::optional<at::Tensor>& sinks,
                                         const std::vector<c10::IValue>& rest,
                                         const ForwardRun& run);

}  // namespace armillary::python
