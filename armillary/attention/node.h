// node.h: attention as a node of the autograd graph, the one that C++ and Python share.
//
//   q, k, v, sinks --forward--> results: out, then others that have no gradient
//                       '-> saved tensors --backward--> d q, d k, d v, d sinks
//                                             ^-- d out
//
// The two passes are the caller's: programs that run, or ops of PyTorch's dispatcher.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

namespace armillary::attention {

using Tensors = std::vector<at::Tensor>;

/// Gives the tensors that forward saved. @throws c10::Error if one of them was written to since.
using Unpack = std::function<Tensors()>;

/// The gradients of all inputs from that of the first result; undefined for those that are not
/// there. Runs on a thread of autograd, maybe more than once.
using NodeBackward = std::function<Tensors(const Unpack& saved, const at::Tensor& dout)>;

/// The results of forward, and all that backward needs.
struct NodeOutcome {
  Tensors results;
  Tensors saved;  ///< Inputs, results, or tensors that are neither; undefined ones too.
  /// Must own no input or result: the graph would never be freed.
  NodeBackward backward;
  std::size_t differentiable = 1;  ///< So many results, the first ones, have a gradient.
};

/// The results of `forward`, in the graph if autograd follows one of the inputs: `tensors`, then
/// the sinks. `forward` runs once, without a graph.
Tensors in_graph(at::TensorList tensors, const std::optional<at::Tensor>& sinks_H,
                 const std::function<NodeOutcome()>& forward);

}  // namespace armillary::attention
