// decoder_layer.h: one layer of the decoder (decoder.h) with its weights, as a function of x.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "armillary/model/decoder.h"

namespace armillary::model {

/// The operations of layers with these options: on one rank, or on shards of tokens over the ranks
/// along tp.
std::shared_ptr<const LayerOps> layer_ops(const DecoderOptions& options,
                                          const TokenShards& shards = {});

/// The norm of this name, with its weights: "norm", or "layers.0.ffn_norm".
Norm decoder_norm(const DecoderOptions& options, const Weights& weights, const std::string& name);

/// A value that owns all it uses, so backward may call it again when the caller's inputs are gone.
struct DecoderLayer {
  DecoderOptions options;
  std::shared_ptr<const LayerOps> ops;
  std::string name;  ///< "layers.0"; the names of its weights begin so.
  Weights weights;
  RotaryAngles angles;
  std::int64_t tokens;  ///< L: those that attention is called with; x has fewer if tp cuts them.

  /// Gives x_BLE of the next layer, or with experts of moe_layer.h. Collective if `attend` or `ops`
  /// is. Its heads are those of the weights: some of the model's along tp. Hands k, then v, to
  /// `attend` before q is projected.
  at::Tensor run(const at::Tensor& x_BLE, const Attend& attend) const;

  // Its two branches, of x under any norm.
  /// Projections of norm(x) to q, k, v, norms of their heads, rotary positions unless the angles
  /// are undefined, attention and its output projection.
  at::Tensor attention(const at::Tensor& x_BLE, const Norm& norm, const Attend& attend) const;
  /// w2 gelu(w1 x), or w2 (silu(w1 x) * w3 x), of norm(x). Without experts.
  at::Tensor feed_forward(const at::Tensor& x_BLE, const Norm& norm) const;

 private:
  const at::Tensor& weight(const char* of) const;
  /// The biases of these matrices, or none if `there` is false.
  std::vector<at::Tensor> biases(bool there, const std::vector<const char*>& of) const;
  /// The weights of the norms of the heads of Q, K and V, or none: V has no norm.
  std::vector<at::Tensor> head_norms() const;
  /// A product to which every rank along tp has added its part, plus the bias of its matrix.
  at::Tensor plus_bias(const at::Tensor& product_BLE, const char* of) const;
  Norm norm(const char* of) const;
};

}  // namespace armillary::model
