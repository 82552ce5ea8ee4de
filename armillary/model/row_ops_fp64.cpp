#include "armillary/model/row_ops_fp64.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <cstdint>
#include <vector>

namespace armillary::model::fp64 {
namespace {

/// One number per row as a column that multiplies the rows of x.
at::Tensor column_of(const at::Tensor& inverse_N, const at::Tensor& x_BLE) {
  std::vector<std::int64_t> shape = x_BLE.sizes().vec();
  shape.back() = 1;
  return inverse_N.view(shape);
}

}  // namespace

at::Tensor inverse_rms(const at::Tensor& x_BLE, double eps) {
  return (x_BLE.square().mean(-1) + eps).rsqrt().flatten();
}

at::Tensor normed(const at::Tensor& x_BLE, const at::Tensor& weight_E,
                  const at::Tensor& inverse_N) {
  return x_BLE * column_of(inverse_N, x_BLE) * weight_E.to(at::kDouble);
}

NormGrads norm_grads(const at::Tensor& dy_BLE, const at::Tensor& x_BLE, const at::Tensor& weight_E,
                     const at::Tensor& inverse_N) {
  const at::Tensor inverse = column_of(inverse_N, x_BLE);
  const at::Tensor unit_BLE = x_BLE * inverse;
  const at::Tensor dunit_BLE = dy_BLE * weight_E.to(at::kDouble);
  const at::Tensor along = (dunit_BLE * unit_BLE).mean(-1, /*keepdim=*/true);
  return {inverse * (dunit_BLE - along * unit_BLE),
          (dy_BLE * unit_BLE).reshape({-1, x_BLE.size(-1)}).sum(0).to(weight_E.scalar_type())};
}

at::Tensor rotated(const at::Tensor& x_BLHD, const at::Tensor& cos_LC, const at::Tensor& sin_LC,
                   double direction) {
  const std::vector<at::Tensor> halves = x_BLHD.chunk(2, -1);
  const at::Tensor cos = cos_LC.to(at::kDouble).unsqueeze(1);
  const at::Tensor sin = sin_LC.to(at::kDouble).unsqueeze(1) * direction;
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
}

}  // namespace armillary::model::fp64
