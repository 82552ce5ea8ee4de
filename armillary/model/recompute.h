// recompute.h: layers whose activations are computed again in backward instead of being kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "armillary/core/section.h"
#include "armillary/predict/cost/model.h"

namespace armillary::model {

/// The policy of a name in recipes: "none", "full" or "attention_output".
/// @throws InvalidArgument with the nearest name.
cost::Recompute parse_recompute(const std::string& name);

/// The [activation_checkpoint] section of a recipe.
struct RecomputeOptions {
  std::string mode = "none";  ///< Name of a policy.
};

Section section_of(RecomputeOptions& recompute);

using Layer = std::function<at::Tensor(const at::Tensor& x)>;

/// Returns first(x) and keeps only x. Backward runs `again` on x with a graph and differentiates
/// it, so the graph of one layer lives at a time.
///
/// (1) Gradients reach x and `parameters`; everything else that `again` depends on must need no
/// gradient. (2) `again` must give the bits of `first`; it may differ in how, if a part of the
/// value was remembered (attention's output). (3) Gradients are then those of first(x) with a
/// graph, bit for bit. Threads: both functions are called on the caller's thread, `again` during
/// backward; all that they refer to must live until then. Source: Chen et al. 2016,
/// arXiv:1604.06174.
at::Tensor recomputed(const at::Tensor& x, const std::vector<at::Tensor>& parameters,
                      const Layer& first, const Layer& again);

}  // namespace armillary::model
