// llama.h: the decoder (decoder.h) with SwiGLU, as Llama 2 and 3 (arXiv:2307.09288, 2407.21783),
// and its relatives by their keys:
//
//   Llama 3.1, 3.2   rope_scaling llama3:..     Qwen2   qkv_bias
//   Mistral 7B       sliding_window             Qwen3   qk_norm, head_dim
//   SmolLM2          enable_weight_tying
//
// Sizes of the published models:
//
//   model          dim  n_layers  n_heads  n_kv_heads  multiple_of  ffn_dim_multiplier  rope_theta
//   Llama 2 7B    4096        32       32           0          256                 1.0       10000
//   Llama 2 13B   5120        40       40           0          256                 1.0       10000
//   Llama 2 70B   8192        80       64           8         4096                 1.3       10000
//   Llama 3 8B    4096        32       32           8         1024                 1.3      500000
//   Llama 3 70B   8192        80       64           8         4096                 1.3      500000
//   Llama 3 405B 16384       126      128           8         4096                 1.2      500000
#pragma once

#include "armillary/model/decoder_options.h"
#include "armillary/model/model_options.h"

namespace armillary::model {

/// Options of the decoder for a [model] section. hidden_dim 0 becomes ffn_dim_multiplier times 8/3
/// dim, rounded up to a multiple of multiple_of: 4096 with 1.3 and 1024 gives 14336.
/// @throws InvalidArgument if that is above 2^31 - 1, or as parse_rope_scaling().
DecoderOptions llama_options(const ModelOptions& model);

}  // namespace armillary::model
