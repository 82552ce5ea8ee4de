#include "armillary/train/models/project.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <optional>

#include "armillary/core/error.h"
#include "armillary/train/models/row_ops.h"

namespace armillary::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The dtype in which values of `dtype` are multiplied.
at::ScalarType product_dtype(at::ScalarType dtype, bool native_bf16) {
  return dtype == at::kBFloat16 && !native_bf16 ? at::kFloat : dtype;
}

/// The weight as `dtype` has it, in the dtype that is multiplied.
at::Tensor operand(const at::Tensor& weight, at::ScalarType dtype, bool native_bf16) {
  if (dtype != at::kBFloat16 || native_bf16) return weight.to(dtype);
  at::Tensor rounded = weight.clone();
  round_to_bf16(rounded);
  return rounded;
}

at::Tensor rows(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

struct Product : torch::CustomClassHolder {
  ProductOptions options;  ///< Without norm_weight: a parameter, which the graph holds.
  at::Tensor inverse_N;    ///< Of the norm, if there is one.
  decltype(EachProduct::made_grad) made_grad;

  /// What is multiplied: x, or what is made of it.
  at::Tensor factor(const at::Tensor& x, const at::Tensor& norm_weight) const {
    const at::ScalarType dtype = product_dtype(x.scalar_type(), options.native_bf16);
    if (inverse_N.defined()) return rows(normed(x, norm_weight, inverse_N)).to(dtype);
    if (!options.gelu) return rows(x).to(dtype);
    // In the dtype of products: ATen's GELU of bf16 takes twice as long as of fp32.
    at::Tensor made = at::gelu(x.to(dtype));
    if (dtype != x.scalar_type()) round_to_bf16(made);
    return rows(made);
  }
};

class ProjectFunction : public torch::autograd::Function<ProjectFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& given,
                               const std::optional<at::Tensor>& norm_weight, at::TensorList weights,
                               const c10::intrusive_ptr<Product>& product,
                               const EachProduct& each) {
    const at::Tensor x = given.contiguous();
    variable_list saved{x, norm_weight.value_or(at::Tensor())};
    saved.insert(saved.end(), weights.begin(), weights.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["product"] = c10::IValue::make_capsule(product);
    if (norm_weight) product->inverse_N = inverse_rms(x, product->options.norm_eps);
    const at::Tensor a = product->factor(x, saved[1]);
    std::vector<std::int64_t> shape = x.sizes().vec();
    variable_list results(weights.size());
    for (const std::size_t i : each.order) {
      shape.back() = weights[i].size(0);
      const at::Tensor w = operand(weights[i], x.scalar_type(), product->options.native_bf16);
      const at::Tensor y = at::mm(a, w.t()).to(x.scalar_type()).view(shape);
      results[i] = each.made ? each.made(i, y) : y;
    }
    return results;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto product =
        c10::static_intrusive_pointer_cast<Product>(ctx->saved_data["product"].toCapsule());
    const at::Tensor& x = saved[0];
    variable_list dys;
    variable_list dweights;
    {
      const at::Tensor a = product->factor(x, saved[1]);
      for (std::size_t i = 0; i < grads.size(); ++i) {
        const at::Tensor dy = product->made_grad ? product->made_grad(i, grads[i]) : grads[i];
        dys.push_back(dy.reshape({-1, saved[i + 2].size(0)}).to(a.scalar_type()));
        dweights.push_back(at::mm(dys[i].t(), a).to(saved[i + 2].scalar_type()));
      }
    }
    at::Tensor dx;
    for (std::size_t i = 0; i < dys.size(); ++i) {
      const at::Tensor w = operand(saved[i + 2], x.scalar_type(), product->options.native_bf16);
      if (dx.defined()) {
        at::addmm_out(dx, dx, dys[i], w);
      } else {
        dx = at::mm(dys[i], w);
      }
    }
    dys.clear();
    dx = dx.view(x.sizes());
    if (product->options.gelu) at::gelu_backward_out(dx, dx, x.to(dx.scalar_type()));
    dx = dx.to(x.scalar_type());
    variable_list results{dx, {}};
    if (saved[1].defined()) {
      const NormGrads of = norm_grads(dx, x, saved[1], product->inverse_N);
      results = {of.dx_BLE, of.dweight_E};
    }
    results.insert(results.end(), dweights.begin(), dweights.end());
    results.resize(results.size() + 2);  // the options, and what is done with each product
    return results;
  }
};

}  // namespace

std::vector<at::Tensor> project(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                const ProductOptions& options) {
  EachProduct each;
  each.order.resize(weights.size());
  std::iota(each.order.begin(), each.order.end(), std::size_t{0});
  return project(x, weights, options, each);
}

std::vector<at::Tensor> project(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                const ProductOptions& options, const EachProduct& each) {
  ARMILLARY_CHECK(each.order.size() == weights.size());
  auto product = c10::make_intrusive<Product>();
  product->options = options;
  product->options.norm_weight.reset();
  product->made_grad = each.made_grad;
  const auto norm_weight =
      options.norm_weight.defined() ? std::optional(options.norm_weight) : std::nullopt;
  return ProjectFunction::apply(x, norm_weight, at::TensorList(weights), product, each);
}

at::Tensor project(const at::Tensor& x, const at::Tensor& weight, const ProductOptions& options) {
  return project(x, std::vector<at::Tensor>{weight}, options)[0];
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

}  // namespace armillary::train
