// row_ops.h: what a transformer does to every token beside products, each in one pass over memory.
//
// fp32 and bf16; all is computed in fp32 and rounded once. Differentiable; backward keeps the input
// (and a number per row), where ATen's compositions keep several copies of it.
#pragma once

#include <ATen/core/Tensor.h>

namespace armillary::train {

/// x / sqrt(mean(x^2) + eps) * weight over the last dim (Zhang & Sennrich 2019, arXiv:1910.07467).
/// weight_E fp32.
at::Tensor rms_norm(const at::Tensor& x_BLE, const at::Tensor& weight_E, double eps);

/// Its parts, without a graph, for what keeps x alone and makes norm(x) again. x contiguous.
at::Tensor inverse_rms(const at::Tensor& x_BLE, double eps);  ///< fp32, one for each row.
at::Tensor normed(const at::Tensor& x_BLE, const at::Tensor& weight_E, const at::Tensor& inverse_N);
struct NormGrads {
  at::Tensor dx_BLE;
  at::Tensor dweight_E;
};
NormGrads norm_grads(const at::Tensor& dy_BLE, const at::Tensor& x_BLE, const at::Tensor& weight_E,
                     const at::Tensor& inverse_N);

/// silu(gate) * up, elementwise (Shazeer 2020, arXiv:2002.05202). Backward keeps gate and up alone.
at::Tensor swiglu(const at::Tensor& gate_BLF, const at::Tensor& up_BLF);

/// The values of x, contiguous and fp32, become the nearest that bf16 has.
void round_to_bf16(at::Tensor& x);

/// Turns the pairs (x_i, x_{i + D/2}) of each token by its angles (RoFormer, arXiv:2104.09864), and
/// back, without a graph: the gradient of `rotated` is `rotated_back` of the gradient. cos and sin:
/// fp32 [L, D/2].
at::Tensor rotated(const at::Tensor& x_BLHD, const at::Tensor& cos_LC, const at::Tensor& sin_LC);
at::Tensor rotated_back(const at::Tensor& x_BLHD, const at::Tensor& cos_LC,
                        const at::Tensor& sin_LC);

}  // namespace armillary::train
