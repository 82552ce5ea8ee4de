// decoder.h: a decoder-only transformer on one rank's tokens. It knows nothing of ranks: attention
// over the whole sequence is a function that the caller passes in (attend.h).
//
//   tokens_BL --embedding--> n_layers x ( + attention(norm(x)),  + feed_forward(norm(x)) )
//             --norm--> --output--> logits_BLV
//
// Pre-norm with RMSNorm, rotary positions, grouped-query attention, GELU or SwiGLU, no biases.
// Sub-modules have the names of torchtitan's llama3 (layers.0.attention.wq.weight). Include it from
// sources only: libtorch's headers of modules are heavy.
//
// Dtypes. Parameters are fp32. With dtype bf16 the matrices are rounded to bf16 when they are used,
// and activations are bf16; norms and rotary positions compute in fp32 and round their result.
//
// Memory. Autograd keeps these activations of a layer: x, q, k, v, out, h, the input of GELU, or
// the inputs and the output of SwiGLU; fewer with a policy of recompute.h.
//
//   B batch, L tokens of this rank, E dim, H query heads, G KV heads, D head dim, V vocabulary
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "armillary/train/models/attend.h"
#include "armillary/train/models/decoder_options.h"
#include "armillary/train/models/layer_ops.h"

namespace armillary::train {

/// cos and sin of the rotary angle of each pair of dims at each position, fp32, [L, D/2].
struct RotaryAngles {
  at::Tensor cos_LC;
  at::Tensor sin_LC;
};

/// RMSNorm over dim E, with its weight.
class RmsNormImpl : public torch::nn::Module {
 public:
  explicit RmsNormImpl(const DecoderOptions& options);
  /// norm(x_BLE), as an op of its own.
  at::Tensor forward(const at::Tensor& x_BLE);
  /// Weight and epsilon, for an op that fuses the norm with a product.
  Norm norm() const { return {weight_, eps_}; }

 private:
  std::shared_ptr<const LayerOps> ops_;
  double eps_;
  at::Tensor weight_;
};
TORCH_MODULE(RmsNorm);

/// A matrix [out, in] that multiplies every token, without bias. LayerOps does the product.
class ProjectionImpl : public torch::nn::Module {
 public:
  ProjectionImpl(std::int64_t in, std::int64_t out)
      : weight_(register_parameter("weight", at::zeros({out, in}))) {}
  /// [out, in], fp32; 0 until DecoderImpl::initialize.
  const at::Tensor& weight() const { return weight_; }

 private:
  at::Tensor weight_;
};
TORCH_MODULE(Projection);

/// Projections to q, k, v, rotary positions of q and k, attention, and the projection of its
/// output.
class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const DecoderOptions& options);
  /// Attention of norm(x_BLE). Hands k, then v, to `attend` before q is projected.
  at::Tensor forward(const at::Tensor& x_BLE, const RmsNorm& norm, const RotaryAngles& angles,
                     const Attend& attend);

 private:
  std::int64_t heads_;
  std::int64_t kv_heads_;
  std::int64_t head_dim_;
  std::shared_ptr<const LayerOps> ops_;
  Projection wq_, wk_, wv_, wo_;
};
TORCH_MODULE(Attention);

/// The MLP of a layer: w2 gelu(w1 x), or w2 (silu(w1 x) * w3 x).
class FeedForwardImpl : public torch::nn::Module {
 public:
  explicit FeedForwardImpl(const DecoderOptions& options);
  /// The MLP of norm(x_BLE).
  at::Tensor forward(const at::Tensor& x_BLE, const RmsNorm& norm);

 private:
  std::shared_ptr<const LayerOps> ops_;
  Projection w1_, w2_;
  Projection w3_{nullptr};  ///< Null unless SwiGLU.
};
TORCH_MODULE(FeedForward);

/// One layer: x + attention(norm(x)) = h, then h + feed_forward(norm(h)).
class DecoderLayerImpl : public torch::nn::Module {
 public:
  explicit DecoderLayerImpl(const DecoderOptions& options);
  /// Gives x_BLE of the next layer. Collective if `attend` is.
  at::Tensor forward(const at::Tensor& x_BLE, const RotaryAngles& angles, const Attend& attend);

 private:
  RmsNorm attention_norm_, ffn_norm_;
  Attention attention_;
  FeedForward feed_forward_;
};
TORCH_MODULE(DecoderLayer);

/// The whole model on one rank's tokens. Threads: that of the rank; ranks have replicas of their
/// own.
class DecoderImpl : public torch::nn::Module {
 public:
  explicit DecoderImpl(const DecoderOptions& options);

  /// Draws all parameters from `seed` alone, so they are equal on all ranks: matrices normal(0,
  /// 0.02), those whose product is added to the residual stream divided by sqrt(2 n_layers)
  /// (GPT-2); the embedding normal(0, 1) (torchtitan) unless it is the output too; norms 1.
  void initialize(std::int64_t seed);

  /// Returns logits_BLV in `dtype`. tokens_BL int64; positions_L int64: the place of each token in
  /// the whole sequence, in any order. L may be 0.
  at::Tensor forward(const at::Tensor& tokens_BL, const at::Tensor& positions_L,
                     const Attends& attends);

  /// Sum over the tokens of -log of the probability of their label, fp64, differentiable. labels_BL
  /// int64; a token with kIgnoredLabel adds nothing. Equals at::cross_entropy_loss of `forward` up
  /// to the order of sums, but holds the logits of `chunk_tokens` tokens at a time
  /// (cross_entropy.h).
  at::Tensor loss(const at::Tensor& tokens_BL, const at::Tensor& positions_L,
                  const at::Tensor& labels_BL, const Attends& attends, std::int64_t chunk_tokens);

 private:
  /// Input of the output matrix: the last norm's output.
  at::Tensor features(const at::Tensor& tokens_BL, const at::Tensor& positions_L,
                      const Attends& attends);
  /// The output matrix: the embedding if it is tied.
  const at::Tensor& output_weight() const;

  DecoderOptions options_;
  torch::nn::Embedding tok_embeddings_;
  std::vector<DecoderLayer> layers_;
  RmsNorm norm_;
  Projection output_{nullptr};  ///< Null if the output is tied to the embedding.
};
TORCH_MODULE(Decoder);

}  // namespace armillary::train
