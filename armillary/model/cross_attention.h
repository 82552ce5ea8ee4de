// cross_attention.h: cross-attention of a layer: tokens of pictures read the words of their own
// picture (PixArt-alpha, arXiv:2310.00426, section 2.3; Vaswani et al., arXiv:1706.03762, section
// 3.2.3).
//
//   x_BKE --wq--> q of all L tokens ---.
//   words_BNE --wk, wv--> k, v --------'--> attention_over_words --wo--> [B, K, E]
//
// Words are few: a rank has all words of the pictures whose tokens it has, so attention is local
// and nothing travels along cp. Gradients of wk, wv and the words are partial there, those of the
// words along tp too, where a rank reads them with its own heads.
//
//   B 1, L tokens that the ranks along tp share, K of this rank, R rows of T words each, N = R T,
//   E dim, H heads, D head dim
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "armillary/model/decoder_options.h"
#include "armillary/model/layer_ops.h"
#include "armillary/model/weights.h"

namespace armillary::model {

/// out_BLHD: each token over the words of its row, a full mask of as many queries as the row has
/// tokens and T keys. Differentiable. q, k and v of one dtype and contiguous, N a multiple of the
/// rows. Backward keeps the three, the output and its log-sum-exp. Cost: a kernel call a row, 4 L T
/// H D flops, backward 10 L T H D. @throws InvalidArgument as kernel::Kernel.
at::Tensor attention_over_words(const at::Tensor& q_BLHD, const at::Tensor& k_BNHD,
                                const at::Tensor& v_BNHD, const TokensOfRow& tokens_of_row);

/// A value that owns all it uses, as DecoderLayer. It has no norm.
struct CrossAttention {
  DecoderOptions options;
  std::shared_ptr<const LayerOps> ops;        ///< Those of tokens, which ranks along tp may share.
  std::shared_ptr<const LayerOps> words_ops;  ///< One rank's.
  std::string name;                           ///< "layers.0.cross_attention".
  Weights weights;
  TokensOfRow tokens_of_row;  ///< Counts all L tokens.

  /// The sum of x and the result is the output of a layer's branch. Collective if `ops` is.
  at::Tensor run(const at::Tensor& x_BKE, const at::Tensor& words_BNE) const;
};

}  // namespace armillary::model
