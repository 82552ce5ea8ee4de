// layer_run.h: a layer that attends, under a policy of recomputation (recompute.h). The layer
// itself only sees the attention function that it is given.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "armillary/model/attend.h"
#include "armillary/model/recompute.h"

namespace armillary::model {

struct AttendingLayer {
  /// Gives the output. It owns all that it uses: backward may call it again, when the caller's
  /// inputs are gone.
  std::function<at::Tensor(const at::Tensor& x, const Attend& attend)> run;
  std::vector<at::Tensor> parameters;  ///< Those that it uses.
};

/// Runs the layer on x. Requires attends.keep under AttentionOutput. Collective if attention is.
at::Tensor run_layer_under(cost::Recompute policy, const AttendingLayer& layer, const at::Tensor& x,
                           const Attends& attends);

}  // namespace armillary::model
