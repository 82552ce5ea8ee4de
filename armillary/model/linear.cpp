// linear.cpp: the autograd function behind every product of tokens and matrices.
//
// Forward: factor = x, norm(x) or gelu(x) as rows; then one GEMM per matrix, each followed by its
// transform. Backward: the factor is computed again for the gradients of the matrices; the gradient
// of x is one sum over the matrices, and then goes back through GELU or norm.
#include "armillary/model/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <optional>

#include "armillary/core/error.h"
#include "armillary/model/row_ops.h"

namespace armillary::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The dtype in which values of `dtype` are multiplied.
at::ScalarType product_dtype(at::ScalarType dtype, bool native_bf16) {
  return dtype == at::kBFloat16 && !native_bf16 ? at::kFloat : dtype;
}

/// The weight with values of `dtype`, in the dtype that is multiplied.
at::Tensor weight_factor(const at::Tensor& weight, at::ScalarType dtype, bool native_bf16) {
  if (dtype != at::kBFloat16 || native_bf16) return weight.to(dtype);
  at::Tensor rounded = weight.clone();
  round_to_bf16(rounded);
  return rounded;
}

/// x as a matrix with a row per token.
at::Tensor rows(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

/// State that backward needs beside the saved tensors.
struct SavedLinear : torch::CustomClassHolder {
  LinearOptions options;  ///< Without norm_weight: a parameter, which the graph holds.
  at::Tensor inverse_N;   ///< 1 / rms of each row; undefined without a norm.
  decltype(EachProduct::transform_grad) transform_grad;

  /// The left factor of the products as rows: x, norm(x) or gelu(x).
  at::Tensor factor(const at::Tensor& x, const at::Tensor& norm_weight) const {
    const at::ScalarType dtype = product_dtype(x.scalar_type(), options.native_bf16);
    if (inverse_N.defined()) return rows(normed(x, norm_weight, inverse_N)).to(dtype);
    if (!options.gelu) return rows(x).to(dtype);
    // In the dtype of products: ATen's GELU of bf16 takes twice as long as of fp32.
    at::Tensor activated = at::gelu(x.to(dtype));
    if (dtype != x.scalar_type()) round_to_bf16(activated);
    return rows(activated);
  }
};

/// Arguments of one call that are no tensors.
struct LinearCall {
  c10::intrusive_ptr<SavedLinear> saved;
  const EachProduct& each;
};

/// Inputs: x, the weight of the norm if there is one, then the matrices. Outputs: one per matrix.
class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& result,
                               const std::optional<at::Tensor>& norm_weight, at::TensorList weights,
                               const LinearCall& call) {
    const at::Tensor x = result.contiguous();
    variable_list saved{x, norm_weight.value_or(at::Tensor())};
    saved.insert(saved.end(), weights.begin(), weights.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["linear"] = c10::IValue::make_capsule(call.saved);
    SavedLinear& linear = *call.saved;
    if (norm_weight) linear.inverse_N = inverse_rms(x, linear.options.norm_eps);

    // Each product is handed on before the next is computed.
    const at::Tensor a = linear.factor(x, saved[1]);
    std::vector<std::int64_t> shape = x.sizes().vec();
    variable_list results(weights.size());
    for (const std::size_t i : call.each.order) {
      shape.back() = weights[i].size(0);
      const at::Tensor w = weight_factor(weights[i], x.scalar_type(), linear.options.native_bf16);
      const at::Tensor y = at::mm(a, w.t()).to(x.scalar_type()).view(shape);
      results[i] = call.each.transform ? call.each.transform(i, y) : y;
    }
    return results;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto linear =
        c10::static_intrusive_pointer_cast<SavedLinear>(ctx->saved_data["linear"].toCapsule());
    const at::Tensor& x = saved[0];

    // Gradients of the matrices: dy^T a. The factor `a` is freed before dx is allocated.
    variable_list dys;
    variable_list dweights;
    {
      const at::Tensor a = linear->factor(x, saved[1]);
      for (std::size_t i = 0; i < grads.size(); ++i) {
        const at::Tensor dy =
            linear->transform_grad ? linear->transform_grad(i, grads[i]) : grads[i];
        dys.push_back(dy.reshape({-1, saved[i + 2].size(0)}).to(a.scalar_type()));
        dweights.push_back(at::mm(dys[i].t(), a).to(saved[i + 2].scalar_type()));
      }
    }

    // Gradient of the factor: the sum of dy w over the matrices, in the dtype of products.
    at::Tensor dx;
    for (std::size_t i = 0; i < dys.size(); ++i) {
      const at::Tensor w =
          weight_factor(saved[i + 2], x.scalar_type(), linear->options.native_bf16);
      if (dx.defined()) {
        at::addmm_out(dx, dx, dys[i], w);
      } else {
        dx = at::mm(dys[i], w);
      }
    }
    dys.clear();

    // Back through GELU or norm to x.
    dx = dx.view(x.sizes());
    if (linear->options.gelu) at::gelu_backward_out(dx, dx, x.to(dx.scalar_type()));
    dx = dx.to(x.scalar_type());
    variable_list results{dx, {}};
    if (saved[1].defined()) {
      const NormGrads norm = norm_grads(dx, x, saved[1], linear->inverse_N);
      results = {norm.dx_BLE, norm.dweight_E};
    }
    results.insert(results.end(), dweights.begin(), dweights.end());
    results.emplace_back();  // for the argument `call`
    return results;
  }
};

}  // namespace

std::vector<at::Tensor> fused_linear(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                     const LinearOptions& options) {
  EachProduct each;
  each.order.resize(weights.size());
  std::iota(each.order.begin(), each.order.end(), std::size_t{0});
  return fused_linear(x, weights, options, each);
}

std::vector<at::Tensor> fused_linear(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                     const LinearOptions& options, const EachProduct& each) {
  ARMILLARY_CHECK(each.order.size() == weights.size());
  auto saved = c10::make_intrusive<SavedLinear>();
  saved->options = options;
  saved->options.norm_weight.reset();
  saved->transform_grad = each.transform_grad;
  const auto norm_weight =
      options.norm_weight.defined() ? std::optional(options.norm_weight) : std::nullopt;
  return LinearFunction::apply(x, norm_weight, at::TensorList(weights), LinearCall{saved, each});
}

at::Tensor fused_linear(const at::Tensor& x, const at::Tensor& weight,
                        const LinearOptions& options) {
  return fused_linear(x, std::vector<at::Tensor>{weight}, options)[0];
}

at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, bool native_bf16) {
  const at::ScalarType product = product_dtype(a.scalar_type(), native_bf16);
  return at::mm(a.to(product), b.to(product));
}

void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool native_bf16) {
  const at::ScalarType product = product_dtype(a.scalar_type(), native_bf16);
  if (sum.scalar_type() == product) {
    at::addmm_out(sum, sum, a.to(product), b.to(product));
  } else {
    sum.add_(at::mm(a.to(product), b.to(product)));
  }
}

}  // namespace armillary::model
