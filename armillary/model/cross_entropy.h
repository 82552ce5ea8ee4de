// cross_entropy.h: the loss over a vocabulary, without the logits of all tokens at once, and
// without those of all words on one rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "armillary/model/tensor_parallel.h"

namespace armillary::model {

struct CrossEntropyOptions {
  std::int64_t chunk_tokens = 1024;   ///< Logits that exist at once: [chunk_tokens, V]. At least 1.
  std::int64_t ignored_label = -100;  ///< Tokens with this label add nothing.
  bool native_bf16 = false;           ///< As in LinearOptions (linear.h).
  /// Ranks with the same x and labels, each with its words: weight_VE has the rows from that of
  /// `first_word` on. Null: it has all.
  std::shared_ptr<TensorParallel> ranks = {};
  std::int64_t first_word = 0;
};

/// Sum over tokens of -log softmax(x weight^T)[label], an fp64 scalar, differentiable in x and
/// weight. x_NE fp64, fp32 or bf16; weight_VE fp32 (or as x), with a gradient of fp32 for bf16;
/// labels_N int64.
///
/// Equal to fused_linear and at::cross_entropy_loss up to the order of sums: logits in the dtype of
/// x, softmax in fp32 (fp64 for fp64), the gradient of logits rounded to the dtype of x. Forward
/// computes the gradients too, chunk by chunk, so logits are computed once. Memory: chunk_tokens x
/// V logits, which become their gradients, dx_NE, and dweight_VE; only the logits if no gradient is
/// required.
///
/// Over ranks: (1) each returns the sum over its part of the tokens, [i N / t, (i + 1) N / t) on
/// rank i of t, so that the sum over the ranks is the loss. (2) The gradients are those of that
/// sum, which must enter with the same factor on all ranks: that of the weight is whole, that of x
/// is partial, the part that the words of this rank have in it. (3) Three numbers a token are
/// reduced over the ranks, the largest logit, the sum of exp and the logit of the label: never
/// logits of words.
/// @throws InvalidArgument if chunk_tokens < 1.
at::Tensor cross_entropy(const at::Tensor& x_NE, const at::Tensor& weight_VE,
                         const at::Tensor& labels_N, const CrossEntropyOptions& options);

}  // namespace armillary::model
