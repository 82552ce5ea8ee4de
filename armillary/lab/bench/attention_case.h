// attention_case.h: one whole attention by a kernel, random inputs for it, and the error of its
// results against fp64. For the sources of this folder and of calibrate/.
//
// Letters of shapes: B batch entries (always 1 here), L tokens of a rank, H query heads, G KV
// heads, D head dim, E value dim (equal to D here), X either of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "armillary/kernel/block_attention.h"
#include "armillary/plan/problem.h"

namespace armillary::bench {

/// One attention over the pairs of one rank, forward and backward, with any kernel. It reads inputs
/// and writes results or gradients, all in the input dtype. All buffers are made once, by the
/// constructor. `kernel` and the mask of `pairs` must outlive it.
class AttentionCase {
 public:
  /// Inputs [1, L, heads, dim] in the dtype of the case: q, k, v, and the gradient of the output.
  AttentionCase(const kernel::Kernel& kernel, const kernel::Pairs& pairs, kernel::Inputs inputs,
                at::Tensor dout_BLHE);

  void forward();   ///< The output and its log-sum-exp.
  void backward();  ///< Delta and all gradients. Requires forward().

  /// {out}; with `backward` {out, dq, dk, dv}, which requires backward().
  std::vector<at::Tensor> results(bool backward) const;

 private:
  const kernel::Kernel& kernel_;
  kernel::Pairs pairs_;
  kernel::Inputs inputs_;
  at::Tensor dout_, delta_;
  kernel::AttentionOutput result_;  ///< Saved by forward(), read by backward().
  kernel::InputGrads grads_;
};

/// @throws InvalidArgument for fp64, because no fast kernel computes in it.
at::ScalarType kernel_dtype(plan::Dtype dtype);

/// Sizes of the inputs of an attention. `heads` is a multiple of `kv_heads`; values have the dim of
/// the keys.
struct SampleShape {
  plan::Dtype dtype = plan::Dtype::F32;
  std::int64_t q_tokens = 0;
  std::int64_t k_tokens = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
};
/// Inputs of an attention and the gradient of its output, [1, tokens, heads, dim], in the dtype.
struct Sample {
  at::Tensor q_BLHD, k_BLGD, v_BLGD, dout_BLHD;
};
/// Normally distributed values, the same in every call.
Sample sample(const SampleShape& shape);

/// The exact {out, dq, dk, dv} of the first KV head and its query heads, by the reference kernel in
/// fp64; without `backward` only {out}.
std::vector<at::Tensor> exact_first_head(const kernel::Pairs& pairs, const kernel::Inputs& inputs,
                                         const at::Tensor& dout_BLHE, bool backward);

/// Error of a result: largest difference over largest value, of the worst tensor; NaN if a tensor
/// has a NaN. Heads behind those of `exact` are not compared. Gradients may be all but zero, as
/// those of one token are: a difference is therefore divided by at least a sixteenth of the largest
/// value of all tensors.
double error_of(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& exact);

/// Refuses to time a wrong result: errors above 1e-5 in fp32, 0.05 in the 16-bit dtypes, and NaN.
/// The bounds are coarse, because accuracy is held by the tests. @throws Error that names `what`.
void require_right(std::string_view what, double error, plan::Dtype dtype);

}  // namespace armillary::bench
