// block.h: one whole attention by a kernel, and how wrong a result is. For the sources of this
// folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "armillary/kernel/block_attention.h"
#include "armillary/plan/problem.h"

namespace armillary::bench {

/// One attention over one block, forward and backward, with any kernel. Inputs in, result or
/// gradients out in the input dtype; nothing is kept but the saved log-sum-exp and output.
class Block {
 public:
  Block(const kernel::Kernel& kernel, const kernel::Pairs& pairs, kernel::Inputs inputs,
        at::Tensor dout_BLHE);

  void forward();
  void backward();  ///< Requires forward().

  /// {out}, and after backward() {out, dq, dk, dv}.
  std::vector<at::Tensor> results(bool backward) const;

 private:
  const kernel::Kernel& kernel_;
  kernel::Pairs pairs_;
  kernel::Inputs inputs_;
  at::Tensor dout_, delta_;
  kernel::Result result_;
  kernel::InputGrads grads_;
};

/// @throws InvalidArgument for fp64, of which there is no kernel to time.
at::ScalarType kernel_dtype(plan::Dtype dtype);

/// Random tensors of an attention over `tokens`, [1, tokens, heads, dim] in `dtype`: the same in
/// every call.
struct Sample {
  at::Tensor q_BLHD, k_BLGD, v_BLGD, dout_BLHD;
};
Sample sample(plan::Dtype dtype, std::int64_t q_tokens, std::int64_t k_tokens, std::int64_t heads,
              std::int64_t kv_heads, std::int64_t head_dim);

/// {out, dq, dk, dv} of the first KV head and its query heads, by the reference in fp64; without
/// `backward` only {out}.
std::vector<at::Tensor> exact_first_head(const kernel::Pairs& pairs, const kernel::Inputs& inputs,
                                         const at::Tensor& dout_BLHE, bool backward);

/// Largest difference over the largest value, of the worst tensor; NaN if one has a NaN. Heads that
/// `exact` lacks are left out. Of a tensor that is all but zero, as gradients of one token are, the
/// difference is over a sixteenth of the largest value of all.
double error_of(const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& exact);

/// @throws Error that names `what` if its error is more than a result may be off by and still be
/// timed: coarse, for the tests are where accuracy is held.
void require_right(std::string_view what, double error, plan::Dtype dtype);

}  // namespace armillary::bench
