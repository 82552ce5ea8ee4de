// sdpa.h: the block of block.h by PyTorch's flash kernel for CPUs. For the sources of this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "armillary/kernel/block_attention.h"

namespace armillary::bench {

/// Inputs are copied to the layout it wants, [B, H, L, D], before anything is timed, and KV heads
/// are repeated for the query heads that share them, for it knows no groups.
class Sdpa {
 public:
  Sdpa(const kernel::Inputs& inputs, const at::Tensor& dout_BLHE, bool causal);

  void forward();
  void backward();  ///< Requires forward().

  /// As Block's; gradients of repeated KV heads are summed.
  std::vector<at::Tensor> results(bool backward, std::int64_t kv_heads) const;

 private:
  bool causal_;
  double scale_;
  at::Tensor q_, k_, v_, dout_, out_, lse_, dq_, dk_, dv_;  ///< [B, H, L, D].
};

}  // namespace armillary::bench
