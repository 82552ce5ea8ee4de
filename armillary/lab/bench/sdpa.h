// sdpa.h: the attention of attention_case.h by PyTorch's flash kernel for CPUs, which a user who
// has one rank would call. For the sources of this folder.
//
// Letters of shapes are those of attention_case.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "armillary/kernel/block_attention.h"

namespace armillary::bench {

/// One attention over all pairs of a causal or a full mask. The constructor copies the inputs to
/// the layout of that kernel, [B, H, L, D], and repeats KV heads for the query heads that share
/// them, because it knows no groups; both are no part of its time.
class Sdpa {
 public:
  /// Inputs and the gradient of the output, [1, L, heads, D], as AttentionCase takes them.
  Sdpa(const kernel::Inputs& inputs, const at::Tensor& dout_BLHE, bool causal);

  void forward();   ///< The output and its log-sum-exp.
  void backward();  ///< All gradients. Requires forward().

  /// The results of AttentionCase::results, [B, L, H, D]: gradients of a KV head are the sums of
  /// those of its copies.
  std::vector<at::Tensor> results(bool backward, std::int64_t kv_heads) const;

 private:
  bool causal_;
  double scale_;
  at::Tensor q_, k_, v_, dout_, out_, lse_, dq_, dk_, dv_;  ///< [B, H, L, D].
};

}  // namespace armillary::bench
