// decoder_layer.h: one layer of the decoder (decoder.h) with its weights, as a function of x.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "armillary/model/decoder.h"

namespace armillary::model {

/// A value that owns all it uses, so backward may call it again when the caller's inputs are gone.
struct DecoderLayer {
  DecoderOptions options;
  std::shared_ptr<const LayerOps> ops;
  std::string name;  ///< "layers.0"; the names of its weights begin so.
  Weights weights;
  RotaryAngles angles;

  /// Gives x_BLE of the next layer. Collective if `attend` is. Hands k, then v, to `attend` before
  /// q is projected.
  at::Tensor run(const at::Tensor& x_BLE, const Attend& attend) const;

 private:
  const at::Tensor& weight(const char* of) const;
  Norm norm(const char* of) const;
  /// Projections of norm(x) to q, k, v, rotary positions, attention and its output projection.
  at::Tensor attention(const at::Tensor& x_BLE, const Attend& attend) const;
  /// w2 gelu(w1 x), or w2 (silu(w1 x) * w3 x), of norm(x).
  at::Tensor feed_forward(const at::Tensor& x_BLE) const;
};

}  // namespace armillary::model
