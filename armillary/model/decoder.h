// decoder.h: a decoder-only transformer as units (model.h), for gpt.h, gpt2.h, llama.h and moe.h.
//
//   embedding   tokens_BL, and learned positions --> x_BLE
//   layers.i    x + attention(norm(x)) = h, then h + feed_forward(norm(h))
//   head        norm, then the output matrix: logits_BLV, or with labels the loss
//
// With experts layers.i ends with h, and the rest is a unit behind it, layers.i.experts
// (moe_layer.h).
//
// Pre-norm with RMSNorm or LayerNorm, rotary or learned positions, grouped-query attention with or
// without norms of Q and K, GELU or SwiGLU, biases in the layers, of Q, K and V alone, or none.
// decoder_parameters.h has the names, shapes and initial values of the parameters.
//
// Dtypes. Parameters are fp32. With dtype bf16 they may be bf16 as well, else the matrices are
// rounded to it when they are used; activations are bf16; norms and rotary positions compute in
// fp32 and round their result, and gradients of parameters are fp32. With fp64 parameters and dtype
// fp64 all is fp64.
//
// Ranks along tp (tensor_parallel.h), if the inputs have them: weights are this rank's ranges
// (range_of of parameter.h), x is [B, K, E] of its tokens, and its heads attend to all L tokens:
//
//   embedding   of the words of this rank, reduce-scatter
//   layers.i    norm, gather, columns; attention or the MLP; rows, reduce-scatter
//   head        norm, gather, the words of this rank: the loss of its tokens, summed over the words
//               of all ranks; without labels the logits of its words for all L tokens
//
// Memory. Autograd keeps these activations of a layer: x, q, k, v, out, h, the input of GELU, or
// the inputs and the output of SwiGLU, and q and k before their norms, if they have norms; fewer
// with a policy of recompute.h. The loss is cross_entropy.h.
//
//   B batch, L tokens of this rank, E dim, H query heads, G KV heads, D head dim, V vocabulary
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "armillary/model/decoder_options.h"
#include "armillary/model/layer_ops.h"
#include "armillary/model/model.h"

namespace armillary::model {

/// cos and sin of the rotary angle of each pair of dims at each position, times the scale of
/// rope_scaling.h, fp32 (fp64 in fp64), [L, D/2]; undefined with learned positions.
struct RotaryAngles {
  at::Tensor cos_LC;
  at::Tensor sin_LC;
};

class Decoder : public Model {
 public:
  explicit Decoder(const DecoderOptions& options);

  std::vector<std::string> units() const override;
  std::vector<Parameter> parameters() const override;
  cost::ModelCost cost() const override;
  std::int64_t vocab_size() const override { return options_.vocab_size(); }

  /// Reads `tokens` in the embedding and `labels`, if there are any, in the head. The loss is fp64;
  /// a token with kIgnoredLabel adds nothing. The logits are in the dtype of the options.
  /// @throws InvalidArgument for a position that has no row in the table of learned positions.
  at::Tensor run(int unit, const Weights& weights, const at::Tensor& x,
                 const ModelInputs& inputs) override;

 private:
  at::Tensor run_embedding(const Weights& weights, const ModelInputs& inputs) const;
  at::Tensor run_layer(std::int64_t layer, const Weights& weights, const at::Tensor& x_BLE,
                       const ModelInputs& inputs);
  at::Tensor run_experts(std::int64_t layer, const Weights& weights, const at::Tensor& h_BLE,
                         const ModelInputs& inputs) const;
  at::Tensor run_head(const Weights& weights, const at::Tensor& x_BLE,
                      const ModelInputs& inputs) const;
  const RotaryAngles& angles_at(const at::Tensor& positions_L);
  /// The operations of a layer over the ranks along tp, if there are any.
  std::shared_ptr<const LayerOps> ops_over(const TokenShards& shards) const;
  /// The words whose rows of the table this rank has.
  EvenPart words_of(const TokenShards& shards, const at::Tensor& table_VE) const;

  DecoderOptions options_;
  std::shared_ptr<const LayerOps> ops_;  ///< Those of one rank.
  // All layers of a pass have the same angles.
  at::Tensor angles_positions_L_;
  RotaryAngles angles_;
};

}  // namespace armillary::model
