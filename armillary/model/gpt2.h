// gpt2.h: the decoder (decoder.h) as GPT-2 (Radford et al. 2019) and GPT-3 (arXiv:2005.14165):
// learned positions, LayerNorm, biases, GELU, an output matrix that is the embedding.
//
// Sizes of the published models, with heads of 64 dims, or 128 in GPT-3 175B:
//
//   model         dim  n_layers  n_heads  max_seq_len  vocab_size
//   GPT-2         768        12       12         1024       50257
//   GPT-2 medium 1024        24       16         1024       50257
//   GPT-2 large  1280        36       20         1024       50257
//   GPT-2 XL     1600        48       25         1024       50257
//   GPT-3 175B  12288        96       96         2048       50257
//
// Differs from the papers: GELU is exact, not its approximation by tanh, and all layers of GPT-3
// have the mask of the recipe.
#pragma once

#include "armillary/model/decoder_options.h"
#include "armillary/model/model_options.h"

namespace armillary::model {

/// Options of the decoder for a [model] section. hidden_dim 0 becomes 4 dim. Requires check_model
/// of registry.h.
DecoderOptions gpt2_options(const ModelOptions& model);

}  // namespace armillary::model
