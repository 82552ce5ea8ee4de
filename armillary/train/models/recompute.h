// recompute.h: a layer whose activations are made again in backward instead of being kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace armillary::train {

/// What a layer keeps from forward to backward.
enum class Recompute : std::uint8_t {
  None,             ///< What autograd keeps.
  Full,             ///< Its input. Attention runs forward twice.
  AttentionOutput,  ///< Its input, and attention's out and log-sum-exp. Attention runs forward
                    ///< once.
};

/// "none", "full", "attention_output", as in a recipe. @throws InvalidArgument with the nearest.
Recompute parse_recompute(const std::string& name);
const std::vector<std::string>& recompute_names();  ///< In the order of the enumerators.

using Layer = std::function<at::Tensor(const at::Tensor& x)>;

/// first(x), of which only x is kept. Backward runs `again` on x with a graph and goes back through
/// it: the graph of one layer lives at a time.
///
/// Gradients reach x and `parameters`: all that `again` depends on with a gradient must be among
/// them. `again` gives the value of `first`; the two differ where a part of it is remembered
/// (attention's output). Both are called on the thread of the caller, `again` inside of backward;
/// what they refer to must live until then. Gradients are those of first(x) with a graph, bit for
/// bit. Source: Chen et al. 2016, arXiv:1604.06174.
at::Tensor recomputed(const at::Tensor& x, const std::vector<at::Tensor>& parameters,
                      const Layer& first, const Layer& again);

}  // namespace armillary::train
