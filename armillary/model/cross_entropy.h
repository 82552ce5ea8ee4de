// cross_entropy.h: the loss over a vocabulary, without the logits of all tokens at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace armillary::model {

struct CrossEntropyOptions {
  std::int64_t chunk_tokens = 1024;   ///< Logits that exist at once: [chunk_tokens, V]. At least 1.
  std::int64_t ignored_label = -100;  ///< Tokens with this label add nothing.
  bool native_bf16 = false;           ///< As in LinearOptions (linear.h).
};

/// Sum over tokens of -log softmax(x weight^T)[label], an fp64 scalar, differentiable in x and
/// weight. x_NE fp64, fp32 or bf16; weight_VE fp32 (or as x); labels_N int64.
///
/// Equal to fused_linear and at::cross_entropy_loss up to the order of sums: logits in the dtype of
/// x, softmax in fp32 (fp64 for fp64), the gradient of logits rounded to the dtype of x. Forward
/// computes the gradients too, chunk by chunk, so logits are computed once. Memory: chunk_tokens x
/// V logits and as many gradients, dx_NE, and dweight_VE; only the logits if no gradient is
/// required.
/// @throws InvalidArgument if chunk_tokens < 1.
at::Tensor cross_entropy(const at::Tensor& x_NE, const at::Tensor& weight_VE,
                         const at::Tensor& labels_N, const CrossEntropyOptions& options);

}  // namespace armillary::model
