// row_ops.cpp: autograd functions and tensors around the loops of row_loops.h.
//
// Tensors are made contiguous and passed on as raw rows. RMSNorm keeps x and one number per row;
// SwiGLU keeps its two inputs and uses ATen's SiLU. The rotation of heads has no autograd function:
// callers apply rotated_back to the gradient. fp64 goes to row_ops_fp64.h.
#include "armillary/model/row_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "armillary/core/error.h"
#include "armillary/model/row_loops.h"
#include "armillary/model/row_ops_fp64.h"

namespace armillary::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// Calls action(T()) with T the C++ type of the tensor's elements.
template <class Action>
void for_element_type(const at::Tensor& x, const Action& action) {
  if (x.scalar_type() == at::kFloat) return action(float());
  ARMILLARY_CHECK(x.scalar_type() == at::kBFloat16);
  action(at::BFloat16());
}

/// The tensor as rows of its last dim.
RowsShape rows_of(const at::Tensor& x_BLE) {
  const std::int64_t dim = x_BLE.size(-1);
  return {dim == 0 ? 0 : x_BLE.numel() / dim, dim};
}

/// Keeps x, the weight and 1 / rms of each row.
class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& given_BLE,
                            const at::Tensor& weight_E, double eps) {
    const at::Tensor x_BLE = given_BLE.contiguous();
    const at::Tensor inverse_N = inverse_rms(x_BLE, eps);
    ctx->save_for_backward({x_BLE, weight_E, inverse_N});
    return normed(x_BLE, weight_E, inverse_N);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const NormGrads norm = norm_grads(grads[0].contiguous(), saved[0], saved[1], saved[2]);
    return {norm.dx_BLE, norm.dweight_E, Variable()};
  }
};

/// y = silu(gate) up, so dup = silu(gate) dy and dgate = silu'(gate) (dy up).
class SwiGluFunction : public torch::autograd::Function<SwiGluFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_BLF,
                            const at::Tensor& up_BLF) {
    ctx->save_for_backward({gate_BLF, up_BLF});
    return at::silu(gate_BLF).mul_(up_BLF);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor dup_BLF = at::silu(saved[0]).mul_(grads[0]);
    return {at::silu_backward(grads[0] * saved[1], saved[0]), dup_BLF};
  }
};

/// x rotated by the angles of its token, with `direction` 1, or back, with -1.
at::Tensor rotated_by(const at::Tensor& given_BLHD, const at::Tensor& cos_LC,
                      const at::Tensor& sin_LC, float direction) {
  if (given_BLHD.scalar_type() == at::kDouble) {
    return fp64::rotated(given_BLHD, cos_LC, sin_LC, direction);
  }
  const at::Tensor x_BLHD = given_BLHD.contiguous();
  at::Tensor y_BLHD = at::empty_like(x_BLHD);
  const std::int64_t tokens = x_BLHD.size(1);
  const std::int64_t heads = x_BLHD.size(2);
  const std::int64_t half = cos_LC.size(1);
  for_element_type(x_BLHD, [&](auto type) {
    using T = decltype(type);
    // Token by token, all heads at once: they share the angles.
    const std::int64_t row = heads * 2 * half;
    for (std::int64_t i = 0; i < x_BLHD.size(0) * tokens; ++i) {
      const std::int64_t angles = i % tokens * half;
      row_loops<T>().rotate({.heads = heads,
                             .dim = 2 * half,
                             .x = x_BLHD.const_data_ptr<T>() + i * row,
                             .cos = cos_LC.const_data_ptr<float>() + angles,
                             .sin = sin_LC.const_data_ptr<float>() + angles,
                             .direction = direction,
                             .y = y_BLHD.mutable_data_ptr<T>() + i * row});
    }
  });
  return y_BLHD;
}

}  // namespace

// Tensor forms of the loops, for autograd functions of other files too.
at::Tensor inverse_rms(const at::Tensor& x_BLE, double eps) {
  if (x_BLE.scalar_type() == at::kDouble) return fp64::inverse_rms(x_BLE, eps);
  const RowsShape shape = rows_of(x_BLE);
  at::Tensor inverse_N = at::empty({shape.rows}, at::kFloat);
  for_element_type(x_BLE, [&](auto type) {
    using T = decltype(type);
    row_loops<T>().inverse_rms(shape, x_BLE.const_data_ptr<T>(), eps,
                               inverse_N.mutable_data_ptr<float>());
  });
  return inverse_N;
}

at::Tensor normed(const at::Tensor& x_BLE, const at::Tensor& weight_E,
                  const at::Tensor& inverse_N) {
  if (x_BLE.scalar_type() == at::kDouble) return fp64::normed(x_BLE, weight_E, inverse_N);
  at::Tensor y_BLE = at::empty_like(x_BLE);
  const at::Tensor wide_E = weight_E.to(at::kFloat);
  for_element_type(x_BLE, [&](auto type) {
    using T = decltype(type);
    row_loops<T>().norm(rows_of(x_BLE), x_BLE.const_data_ptr<T>(),
                        inverse_N.const_data_ptr<float>(), wide_E.const_data_ptr<float>(),
                        y_BLE.mutable_data_ptr<T>());
  });
  return y_BLE;
}

NormGrads norm_grads(const at::Tensor& dy_BLE, const at::Tensor& x_BLE, const at::Tensor& weight_E,
                     const at::Tensor& inverse_N) {
  if (x_BLE.scalar_type() == at::kDouble) {
    return fp64::norm_grads(dy_BLE, x_BLE, weight_E, inverse_N);
  }
  at::Tensor dx_BLE = at::empty_like(x_BLE);
  // The gradient of a weight is a sum over all tokens, so it is kept in fp64.
  std::vector<double> dweight(static_cast<std::size_t>(x_BLE.size(-1)));
  const at::Tensor wide_E = weight_E.to(at::kFloat);
  for_element_type(x_BLE, [&](auto type) {
    using T = decltype(type);
    row_loops<T>().norm_grad({.shape = rows_of(x_BLE),
                              .dy = dy_BLE.const_data_ptr<T>(),
                              .x = x_BLE.const_data_ptr<T>(),
                              .inverse = inverse_N.const_data_ptr<float>(),
                              .weight = wide_E.const_data_ptr<float>(),
                              .dx = dx_BLE.mutable_data_ptr<T>(),
                              .dweight = dweight.data()});
  });
  return {dx_BLE, at::tensor(dweight, at::kFloat)};
}

void round_to_bf16(at::Tensor& x) {
  ARMILLARY_CHECK(x.is_contiguous() && x.scalar_type() == at::kFloat);
  row_loop_set().round_to_bf16(x.numel(), x.mutable_data_ptr<float>());
}

at::Tensor rms_norm(const at::Tensor& x_BLE, const at::Tensor& weight_E, double eps) {
  return RmsNormFunction::apply(x_BLE, weight_E, eps);
}

at::Tensor swiglu(const at::Tensor& gate_BLF, const at::Tensor& up_BLF) {
  return SwiGluFunction::apply(gate_BLF, up_BLF);
}

at::Tensor rotated(const at::Tensor& x_BLHD, const at::Tensor& cos_LC, const at::Tensor& sin_LC) {
  return rotated_by(x_BLHD, cos_LC, sin_LC, 1);
}

at::Tensor rotated_back(const at::Tensor& x_BLHD, const at::Tensor& cos_LC,
                        const at::Tensor& sin_LC) {
  return rotated_by(x_BLHD, cos_LC, sin_LC, -1);
}

}  // namespace armillary::model
