// moe.h: the decoder (decoder.h) with a mixture of SwiGLU experts in every layer (moe_layer.h), as
// Mixtral (arXiv:2401.04088) and Qwen3-MoE, or with shared experts and a bias that balances as
// DeepSeek-V3 (arXiv:2412.19437). Attention is that of llama.h.
//
// Sizes of published models:
//
//   model          dim  n_layers  n_heads  n_kv_heads  num_experts  top_k  moe_inter_dim route_norm
//   Mixtral 8x7B  4096        32       32           8            8      2          14336 true
//   Qwen3-30B-A3B 2048        48       32           4          128      8            768 true
#pragma once

#include "armillary/model/decoder_options.h"
#include "armillary/model/model_options.h"

namespace armillary::model {

/// Options of the decoder for a [model] section. moe_inter_dim 0 becomes the width that llama.h
/// gives to an MLP. @throws InvalidArgument as llama_options.
DecoderOptions moe_options(const ModelOptions& model);

/// @throws InvalidArgument unless top_k is at most num_experts; with the nearest legal value.
void check_moe(const ModelOptions& model);

}  // namespace armillary::model
