// decoder.h: a decoder-only transformer on one rank's tokens. It knows nothing of ranks: attention
// over the whole sequence is a function that the caller passes in (attend.h).
//
//   tokens_BL --embedding--> n_layers x ( + attention(norm(x)),  + feed_forward(norm(x)) )
//             --norm--> --output--> logits_BLV
//
// Pre-norm with RMSNorm, rotary positions, grouped-query attention, GELU or SwiGLU, no biases.
// Sub-modules
// have the names of torchtitan's llama3 (layers.0.attention.wq.weight). Include from sources only:
// module headers of libtorch are heavy.
//
// Dtypes. Parameters are fp32. With dtype bf16 the matrices are rounded to bf16 where they are
// used, and activations are bf16; norms and rotations compute in fp32 and round their result.
//
// Memory. Of a layer, autograd keeps x, q, k, v, out, h and the feed-forward before GELU, or before
// and after SwiGLU; with a policy of recompute.h less.
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

/// cos and sin of the rotation of each pair of dims at each position, fp32, [L, D/2].
struct Rotation {
  at::Tensor cos_LC;
  at::Tensor sin_LC;
};

class RmsNormImpl : public torch::nn::Module {
 public:
  explicit RmsNormImpl(const DecoderOptions& options);
  at::Tensor forward(const at::Tensor& x_BLE);
  Norm norm() const { return {weight_, eps_}; }

 private:
  std::shared_ptr<const LayerOps> ops_;
  double eps_;
  at::Tensor weight_;
};
TORCH_MODULE(RmsNorm);

/// A matrix [out, in] that multiplies every token (layer_ops.h); no bias.
class ProjectionImpl : public torch::nn::Module {
 public:
  ProjectionImpl(std::int64_t in, std::int64_t out)
      : weight_(register_parameter("weight", at::zeros({out, in}))) {}
  const at::Tensor& weight() const { return weight_; }

 private:
  at::Tensor weight_;
};
TORCH_MODULE(Projection);

class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const DecoderOptions& options);
  /// Of norm(x). `attend` is shown k, then v, before q is projected.
  at::Tensor forward(const at::Tensor& x_BLE, const RmsNorm& norm, const Rotation& rotation,
                     const Attend& attend);

 private:
  std::int64_t heads_;
  std::int64_t kv_heads_;
  std::int64_t head_dim_;
  std::shared_ptr<const LayerOps> ops_;
  Projection wq_, wk_, wv_, wo_;
};
TORCH_MODULE(Attention);

class FeedForwardImpl : public torch::nn::Module {
 public:
  explicit FeedForwardImpl(const DecoderOptions& options);
  at::Tensor forward(const at::Tensor& x_BLE, const RmsNorm& norm);  ///< Of norm(x).

 private:
  std::shared_ptr<const LayerOps> ops_;
  Projection w1_, w2_;
  Projection w3_{nullptr};  ///< Of SwiGLU alone.
};
TORCH_MODULE(FeedForward);

class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const DecoderOptions& options);
  at::Tensor forward(const at::Tensor& x_BLE, const Rotation& rotation, const Attend& attend);

 private:
  RmsNorm attention_norm_, ffn_norm_;
  Attention attention_;
  FeedForward feed_forward_;
};
TORCH_MODULE(Block);

class DecoderImpl : public torch::nn::Module {
 public:
  explicit DecoderImpl(const DecoderOptions& options);

  /// Draws all parameters from `seed` alone, the same on every rank: matrices normal(0, 0.02),
  /// those that end in the residual stream divided by sqrt(2 n_layers) (GPT-2); the embedding
  /// normal(0, 1) (torchtitan) unless it is the output too; norms 1.
  void initialize(std::int64_t seed);

  /// tokens_BL int64; positions_L int64: the place of each token in the whole sequence, in whatever
  /// order this rank keeps them. Returns logits_BLV in `dtype`. L may be 0.
  at::Tensor forward(const at::Tensor& tokens_BL, const at::Tensor& positions_L,
                     const Attends& attends);

  /// Sum over the tokens of -log of the probability of their label, fp64; labels_BL int64,
  /// kIgnoredLabel counts nothing. That of `forward` and at::cross_entropy_loss, up to the order of
  /// sums, with the logits of `chunk_tokens` tokens at a time (cross_entropy.h).
  at::Tensor loss(const at::Tensor& tokens_BL, const at::Tensor& positions_L,
                  const at::Tensor& labels_BL, const Attends& attends, std::int64_t chunk_tokens);

 private:
  at::Tensor features(const at::Tensor& tokens_BL, const at::Tensor& positions_L,
                      const Attends& attends);
  const at::Tensor& output_weight() const;

  DecoderOptions options_;
  torch::nn::Embedding tok_embeddings_;
  std::vector<Block> layers_;
  RmsNorm norm_;
  Projection output_{nullptr};  ///< Absent if tied.
};
TORCH_MODULE(Decoder);

}  // namespace armillary::train
