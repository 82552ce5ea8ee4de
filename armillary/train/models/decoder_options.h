// decoder_options.h: what a decoder-only transformer is made of (decoder.h). gpt.h and llama.h are
// choices of these.
#pragma once

#include <c10/core/ScalarType.h>
#include <torch/arg.h>

#include <cstdint>

#include "armillary/train/machine.h"
#include "armillary/train/models/recompute.h"

namespace armillary::train {

enum class FeedForwardKind : std::uint8_t {
  Gelu,    ///< w2 gelu(w1 x).
  SwiGlu,  ///< w2 (silu(w1 x) * w3 x) (Shazeer 2020, arXiv:2002.05202).
};

struct DecoderOptions {
  TORCH_ARG(std::int64_t, vocab_size) = 0;
  TORCH_ARG(std::int64_t, dim) = 0;
  TORCH_ARG(std::int64_t, n_layers) = 0;
  TORCH_ARG(std::int64_t, n_heads) = 0;
  TORCH_ARG(std::int64_t, n_kv_heads) = 0;
  TORCH_ARG(std::int64_t, hidden_dim) = 0;
  TORCH_ARG(FeedForwardKind, feed_forward) = FeedForwardKind::Gelu;
  TORCH_ARG(double, norm_eps) = 1e-5;
  TORCH_ARG(double, rope_theta) = 10000;
  TORCH_ARG(bool, tied) = false;
  TORCH_ARG(at::ScalarType, dtype) = at::kFloat;  ///< kFloat or kBFloat16.
  TORCH_ARG(bool, native_bf16) = cpu_multiplies_bf16();
  TORCH_ARG(bool, fused) = true;  ///< fused_cpu_ops or separate_ops (layer_ops.h).
  TORCH_ARG(Recompute, recompute) = Recompute::None;
  TORCH_ARG(std::int64_t, loss_chunk_tokens) = 1024;  ///< Tokens whose logits exist at once.
};

}  // namespace armillary::train
