#include "armillary/train/models/row_ops.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <cmath>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// Calls action(T()) for the C++ type of a tensor's elements.
template <class Action>
void for_element_type(const at::Tensor& x, const Action& action) {
  if (x.scalar_type() == at::kFloat) return action(float());
  ARMILLARY_CHECK(x.scalar_type() == at::kBFloat16);
  action(at::BFloat16());
}

/// The sum of term(i), i < n. Many lanes: without permission to reorder a sum no compiler makes a
/// vector of it.
template <class Term>
float sum_of(std::int64_t n, const Term& term) {
  constexpr std::int64_t kLanes = 16;
  std::array<float, kLanes> lanes{};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] += term(i + j);
  }
  for (; i < n; ++i) lanes[i % kLanes] += term(i);
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

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
    const NormGrads of = norm_grads(grads[0].contiguous(), saved[0], saved[1], saved[2]);
    return {of.dx_BLE, of.dweight_E, Variable()};
  }
};

/// Turned by the angles whose cos and sin are given, `direction` 1, or back, -1.
at::Tensor turned(const at::Tensor& given_BLHD, const at::Tensor& cos_LC, const at::Tensor& sin_LC,
                  float direction) {
  const at::Tensor x_BLHD = given_BLHD.contiguous();
  at::Tensor y_BLHD = at::empty_like(x_BLHD);
  const std::int64_t tokens = x_BLHD.size(1);
  const std::int64_t heads = x_BLHD.size(2);
  const std::int64_t half = cos_LC.size(1);
  for_element_type(x_BLHD, [&](auto type) {
    using T = decltype(type);
    const T* x = x_BLHD.const_data_ptr<T>();
    T* y = y_BLHD.mutable_data_ptr<T>();
    for (std::int64_t row = 0; row < x_BLHD.size(0) * tokens * heads; ++row, x += 2 * half) {
      const std::int64_t token = row / heads % tokens;
      const float* cos = cos_LC.const_data_ptr<float>() + token * half;
      const float* sin = sin_LC.const_data_ptr<float>() + token * half;
      for (std::int64_t i = 0; i < half; ++i) {
        const auto a = static_cast<float>(x[i]);
        const auto b = static_cast<float>(x[i + half]);
        const float turn = direction * sin[i];
        y[i] = static_cast<T>(a * cos[i] - b * turn);
        y[i + half] = static_cast<T>(b * cos[i] + a * turn);
      }
      y += 2 * half;
    }
  });
  return y_BLHD;
}

class RotateFunction : public torch::autograd::Function<RotateFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_BLHD,
                            const at::Tensor& cos_LC, const at::Tensor& sin_LC) {
    ctx->save_for_backward({cos_LC, sin_LC});
    return turned(x_BLHD, cos_LC, sin_LC, 1);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list angles = ctx->get_saved_variables();
    return {turned(grads[0], angles[0], angles[1], -1), Variable(), Variable()};
  }
};

}  // namespace

at::Tensor inverse_rms(const at::Tensor& x_BLE, double eps) {
  const std::int64_t dim = x_BLE.size(-1);
  at::Tensor inverse_N = at::empty({x_BLE.numel() / dim}, at::kFloat);
  auto* inverse = inverse_N.data_ptr<float>();
  for_element_type(x_BLE, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t row = 0; row < inverse_N.size(0); ++row) {
      const T* x = x_BLE.const_data_ptr<T>() + row * dim;
      const float squares = sum_of(dim, [&](std::int64_t i) {
        const auto value = static_cast<float>(x[i]);
        return value * value;
      });
      inverse[row] = static_cast<float>(
          1 / std::sqrt(static_cast<double>(squares) / static_cast<double>(dim) + eps));
    }
  });
  return inverse_N;
}

at::Tensor normed(const at::Tensor& x_BLE, const at::Tensor& weight_E,
                  const at::Tensor& inverse_N) {
  const std::int64_t dim = x_BLE.size(-1);
  const auto* weight = weight_E.const_data_ptr<float>();
  const auto* inverse = inverse_N.const_data_ptr<float>();
  at::Tensor y_BLE = at::empty_like(x_BLE);
  for_element_type(x_BLE, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t row = 0; row < inverse_N.size(0); ++row) {
      const T* x = x_BLE.const_data_ptr<T>() + row * dim;
      T* y = y_BLE.mutable_data_ptr<T>() + row * dim;
      for (std::int64_t i = 0; i < dim; ++i) {
        y[i] = static_cast<T>(static_cast<float>(x[i]) * inverse[row] * weight[i]);
      }
    }
  });
  return y_BLE;
}

NormGrads norm_grads(const at::Tensor& dy_BLE, const at::Tensor& x_BLE, const at::Tensor& weight_E,
                     const at::Tensor& inverse_N) {
  const std::int64_t dim = x_BLE.size(-1);
  const auto* weight = weight_E.const_data_ptr<float>();
  const auto* inverse = inverse_N.const_data_ptr<float>();
  at::Tensor dx_BLE = at::empty_like(x_BLE);
  std::vector<double> dweight(static_cast<std::size_t>(dim));
  for_element_type(x_BLE, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t row = 0; row < inverse_N.size(0); ++row) {
      const T* x = x_BLE.const_data_ptr<T>() + row * dim;
      const T* dy = dy_BLE.const_data_ptr<T>() + row * dim;
      T* dx = dx_BLE.mutable_data_ptr<T>() + row * dim;
      const float r = inverse[row];
      const auto unit = [&](std::int64_t i) { return static_cast<float>(x[i]) * r; };
      const auto grad = [&](std::int64_t i) { return static_cast<float>(dy[i]) * weight[i]; };
      const float along =
          sum_of(dim, [&](std::int64_t i) { return grad(i) * unit(i); }) / static_cast<float>(dim);
      for (std::int64_t i = 0; i < dim; ++i) {
        dx[i] = static_cast<T>(r * (grad(i) - along * unit(i)));
        dweight[i] += static_cast<double>(static_cast<float>(dy[i]) * unit(i));
      }
    }
  });
  return {dx_BLE, at::tensor(dweight, at::kFloat)};
}

at::Tensor rounded_to_bf16(const at::Tensor& x) {
  const at::Tensor from = x.contiguous();
  at::Tensor to = at::empty_like(from);
  const auto* source = from.const_data_ptr<float>();
  auto* target = to.data_ptr<float>();
  for (std::int64_t i = 0; i < from.numel(); ++i) {
    target[i] = static_cast<float>(at::BFloat16(source[i]));
  }
  return to;
}

at::Tensor rms_norm(const at::Tensor& x_BLE, const at::Tensor& weight_E, double eps) {
  return RmsNormFunction::apply(x_BLE, weight_E, eps);
}

at::Tensor rotate(const at::Tensor& x_BLHD, const at::Tensor& cos_LC, const at::Tensor& sin_LC) {
  return RotateFunction::apply(x_BLHD, cos_LC, sin_LC);
}

}  // namespace armillary::train
