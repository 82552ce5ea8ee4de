// decoder_options.h: options of a decoder-only transformer (decoder.h). gpt.h, gpt2.h, llama.h and
// moe.h choose them for their models.
//
//   DecoderOptions().dim(128).n_layers(4).n_heads(4)   setters return the options, as in libtorch
#pragma once

#include <c10/core/ScalarType.h>
#include <torch/arg.h>

#include <cstdint>

#include "armillary/kernel/cpu/cpu_flags.h"
#include "armillary/model/moe_options.h"
#include "armillary/model/recompute.h"
#include "armillary/model/rope_scaling.h"

namespace armillary::model {

/// Activation of the MLP.
enum class FeedForwardKind : std::uint8_t {
  Gelu,    ///< w2 gelu(w1 x).
  SwiGlu,  ///< w2 (silu(w1 x) * w3 x) (Shazeer 2020, arXiv:2002.05202).
};

/// Normalization of a token.
enum class NormKind : std::uint8_t {
  Rms,    ///< RMSNorm, with a weight (Zhang & Sennrich 2019, arXiv:1910.07467).
  Layer,  ///< LayerNorm, with a weight and a bias (Ba et al. 2016, arXiv:1607.06450).
};

struct DecoderOptions {
  // Sizes; check_model of registry.h has the rules. The heads divide dim unless head_dim is given,
  // the KV heads divide the heads, and a head is even if positions are rotary. hidden_dim is the
  // width of the MLP.
  TORCH_ARG(std::int64_t, vocab_size) = 0;
  TORCH_ARG(std::int64_t, dim) = 0;
  TORCH_ARG(std::int64_t, n_layers) = 0;
  TORCH_ARG(std::int64_t, n_heads) = 0;
  TORCH_ARG(std::int64_t, n_kv_heads) = 0;
  TORCH_ARG(std::int64_t, head_dim) = 0;  ///< 0: dim / n_heads; head_dim_of() says which.
  TORCH_ARG(std::int64_t, hidden_dim) = 0;
  TORCH_ARG(FeedForwardKind, feed_forward) = FeedForwardKind::Gelu;
  // The function that is computed.
  TORCH_ARG(NormKind, norm) = NormKind::Rms;
  TORCH_ARG(double, norm_eps) = 1e-5;
  TORCH_ARG(bool, bias) = false;      ///< The matrices of the layers have biases.
  TORCH_ARG(bool, qkv_bias) = false;  ///< Those of Q, K and V have, if `bias` is false.
  /// RMSNorm over each head of Q and of K before rotation, with a weight each (Qwen3).
  TORCH_ARG(bool, qk_norm) = false;
  /// Rows of the table of learned positions, which a token adds to its word; 0: rotary positions.
  TORCH_ARG(std::int64_t, max_seq_len) = 0;
  TORCH_ARG(double, rope_theta) = 10000;  ///< Base of the rotary periods.
  TORCH_ARG(RopeScaling, rope_scaling) = RopeScaling();
  TORCH_ARG(std::int64_t, seq_len) = 0;  ///< Tokens of a whole sequence, for rope_scaling.
  TORCH_ARG(bool, tied) = false;         ///< The output matrix is the embedding.
  /// Experts in the place of the MLP of every layer, which must be SwiGLU and have no biases there.
  TORCH_ARG(MoeOptions, moe) = {};
  // The way it is computed; results differ by rounding only. native_bf16: see LinearOptions of
  // linear.h. fused: fused_cpu_ops or separate_ops of layer_ops.h. recompute: no bit differs.
  // keep_gathered_inputs: along tp (tensor_parallel.h) the inputs of a layer's products are kept,
  // not gathered again in backward: 8 B L E values on the wire a layer, not 10.
  TORCH_ARG(at::ScalarType, dtype) = at::kFloat;  ///< kFloat, kBFloat16, or kDouble (decoder.h).
  TORCH_ARG(bool, native_bf16) = kernel::cpu::multiplies_bf16();
  TORCH_ARG(bool, fused) = true;
  TORCH_ARG(cost::Recompute, recompute) = cost::Recompute::None;
  TORCH_ARG(std::int64_t, loss_chunk_tokens) = 1024;  ///< Tokens whose logits exist at once.
  TORCH_ARG(bool, keep_gathered_inputs) = false;
};

inline std::int64_t head_dim_of(const DecoderOptions& options) {
  return options.head_dim() > 0 ? options.head_dim() : options.dim() / options.n_heads();
}

}  // namespace armillary::model
