// row_ops_fp64.h: the functions of row_ops.h for fp64, by ATen's functions: a reference for tests,
// several passes over memory each. Internal to row_ops.cpp, whose contracts hold.
#pragma once

#include <ATen/core/Tensor.h>

#include "armillary/model/row_ops.h"

namespace armillary::model::fp64 {

at::Tensor inverse_rms(const at::Tensor& x_BLE, double eps);
at::Tensor normed(const at::Tensor& x_BLE, const at::Tensor& weight_E, const at::Tensor& inverse_N);
NormGrads norm_grads(const at::Tensor& dy_BLE, const at::Tensor& x_BLE, const at::Tensor& weight_E,
                     const at::Tensor& inverse_N);
/// `direction` 1, or -1 to rotate back.
at::Tensor rotated(const at::Tensor& x_BLHD, const at::Tensor& cos_LC, const at::Tensor& sin_LC,
                   double direction);

}  // namespace armillary::model::fp64
