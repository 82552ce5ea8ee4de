// cross_entropy.h: the loss over a vocabulary without the logits of all tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "armillary/train/models/project.h"

namespace armillary::train {

struct CrossEntropyOptions {
  std::int64_t chunk_tokens = 1024;   ///< Logits that exist at once: [chunk_tokens, V]. At least 1.
  std::int64_t ignored_label = -100;  ///< Tokens with this label count nothing.
  bool native_bf16 = false;           ///< As in ProductOptions.
};

/// Sum over tokens of -log softmax(x weight^T)[label], an fp64 scalar, differentiable in x and
/// weight. x_NE fp64, fp32 or bf16; weight_VE fp32 (or as x); labels_N int64.
///
/// Equal to project and at::cross_entropy_loss up to the order of sums: logits in the dtype of x,
/// softmax in fp32 (fp64 for fp64), the gradient of logits rounded to the dtype of x. Forward makes
/// the gradients too, chunk by chunk, so logits are made once. Memory: chunk_tokens x V logits and
/// as many gradients, dx_NE, and dweight_VE; without a gradient to make, the logits alone.
/// @throws InvalidArgument if chunk_tokens < 1.
at::Tensor cross_entropy(const at::Tensor& x_NE, const at::Tensor& weight_VE,
                         const at::Tensor& labels_N, const CrossEntropyOptions& options);

}  // namespace armillary::train
