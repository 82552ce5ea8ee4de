// moe_layer.h: the second half of a layer of the decoder (decoder.h) whose MLP is a mixture of
// experts: a unit of its own, so that its experts can be divided over other ranks than the rest.
//
//   h --norm--> n --router--> experts, weights --routed_experts.h--> y
//       '-- shared experts, as the MLP of other decoders, along tp too --------> s     h + y + s
//
// Every rank routes the tokens that it has between matrices, so tp, cp and dp are alike here.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "armillary/model/decoder_options.h"
#include "armillary/model/layer_ops.h"
#include "armillary/model/router.h"
#include "armillary/model/weights.h"

namespace armillary::model {

/// A value that owns all it uses, so backward may call it again when the caller's inputs are gone.
struct MoeLayer {
  DecoderOptions options;
  std::shared_ptr<const LayerOps> ops;
  std::string name;  ///< "layers.0"; the names of its weights begin so.
  Weights weights;
  RouterPlace place;

  /// Gives x_BLE of the next layer. Collective over the ranks of `place` and of `ops`.
  at::Tensor run(const at::Tensor& h_BLE) const;

 private:
  const at::Tensor& weight(const char* of) const;
  /// Calls `beside` while rows travel.
  at::Tensor routed(const at::Tensor& n_BLE, const std::function<void()>& beside) const;
  at::Tensor shared(const at::Tensor& h_BLE, const Norm& norm) const;
};

}  // namespace armillary::model
