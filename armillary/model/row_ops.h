// row_ops.h: the operations of a transformer on single tokens, other than matrix products: norm,
// rotation, SwiGLU. Each is one pass over memory.
//
// fp32 and bf16; computed in fp32 and rounded once. fp64 too, with weights and numbers per row of
// fp64, by ATen and slowly: for tests. Differentiable unless said otherwise; backward keeps the
// input (and a number per row), while ATen's compositions keep several copies of it.
#pragma once

#include <ATen/core/Tensor.h>

namespace armillary::model {

/// x / sqrt(mean(x^2) + eps) * weight over the last dim (Zhang & Sennrich 2019, arXiv:1910.07467).
/// weight_E fp32, or bf16; its gradient is fp32 in either case.
at::Tensor rms_norm(const at::Tensor& x_BLE, const at::Tensor& weight_E, double eps);

/// The parts of rms_norm, without a graph, for autograd functions that keep x alone and compute
/// norm(x) again in backward. x contiguous.
at::Tensor inverse_rms(const at::Tensor& x_BLE, double eps);  ///< 1 / sqrt(..), fp32, one per row.
at::Tensor normed(const at::Tensor& x_BLE, const at::Tensor& weight_E, const at::Tensor& inverse_N);

/// Gradients of rms_norm, from dy and the tensors of forward. dweight is summed in fp64.
struct NormGrads {
  at::Tensor dx_BLE;
  at::Tensor dweight_E;
};
NormGrads norm_grads(const at::Tensor& dy_BLE, const at::Tensor& x_BLE, const at::Tensor& weight_E,
                     const at::Tensor& inverse_N);

/// silu(gate) * up, elementwise (Shazeer 2020, arXiv:2002.05202). Backward keeps gate and up alone.
at::Tensor swiglu(const at::Tensor& gate_BLF, const at::Tensor& up_BLF);

/// Rounds the values of x, contiguous and fp32, to the nearest bf16, in place.
void round_to_bf16(at::Tensor& x);

/// Rotates the pairs (x_i, x_{i + D/2}) of each token by its angles (RoFormer, arXiv:2104.09864),
/// and back. Both without a graph: the gradient of `rotated` is `rotated_back` of the gradient. cos
/// and sin: fp32 [L, D/2].
at::Tensor rotated(const at::Tensor& x_BLHD, const at::Tensor& cos_LC, const at::Tensor& sin_LC);
at::Tensor rotated_back(const at::Tensor& x_BLHD, const at::Tensor& cos_LC,
                        const at::Tensor& sin_LC);

}  // namespace armillary::model
