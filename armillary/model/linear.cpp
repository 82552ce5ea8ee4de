// linear.cpp: the autograd function behind every product of tokens and matrices.
//
// Forward: factor = x, norm(x) or gelu(x) as rows, of the tokens of all ranks if x is a shard; then
// one GEMM per matrix, with its bias, each followed by the norm of its heads and its transform.
// Backward: the factor is computed again for the gradients of the matrices; the gradient of x is
// one sum over the matrices, and over the ranks, and then goes back through GELU or norm.
#include "armillary/model/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/model/narrow_parameters.h"
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
  if (weight.scalar_type() == at::kBFloat16) return weight.to(at::kFloat);
  at::Tensor rounded = weight.clone();
  round_to_bf16(rounded);
  return rounded;
}

/// x as a matrix with a row per token.
at::Tensor rows(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

/// The tensors of one call.
struct LinearTensors {
  const at::Tensor& x;
  at::TensorList weights;
  at::TensorList biases;      ///< None, or one for each weight.
  at::TensorList head_norms;  ///< One for each product whose heads are normed.
  /// None, the weight of RMSNorm, weight and bias of LayerNorm, or its scale and shift.
  at::TensorList norm;
};

/// The norm of the heads of a product.
struct SavedHeadNorm {
  std::size_t product;
  at::Tensor inverse_N = {};  ///< 1 / rms of each head.
};

/// State that backward needs beside the saved tensors.
struct SavedLinear : torch::CustomClassHolder {
  LinearOptions options;  ///< Without the norm's parameters, which the graph holds.
  std::size_t weights = 0;
  std::size_t biases = 0;
  std::vector<SavedHeadNorm> head_norms;
  double head_norm_eps = 0;
  // Numbers of each row, undefined without a norm: 1 / rms, or mean and 1 / deviation.
  at::Tensor mean_N;
  at::Tensor inverse_N;
  decltype(EachProduct::transform_grad) transform_grad;

  /// The parameters by kind; in autograd they are one list.
  LinearTensors tensors(const at::Tensor& x, at::TensorList parameters) const {
    const std::size_t behind = weights + biases;
    return {x, parameters.slice(0, weights), parameters.slice(weights, biases),
            parameters.slice(behind, head_norms.size()),
            parameters.slice(behind + head_norms.size())};
  }

  Modulation modulation(const LinearTensors& tensors) const {
    return {tensors.norm[0], tensors.norm[1], *options.tokens_of_row};
  }

  bool keeps_gathered() const { return options.shards && options.keep_gathered; }

  /// norm(x). Leaves the numbers of each row.
  at::Tensor norm(const LinearTensors& tensors) {
    const at::Tensor& x = tensors.x;
    if (options.tokens_of_row) {
      NormNumbers numbers;
      at::Tensor modulated = modulated_values(x, modulation(tensors), options.norm_eps, numbers);
      mean_N = numbers.mean_N;
      inverse_N = numbers.inverse_N;
      return modulated;
    }
    if (tensors.norm.size() == 1) {
      if (!inverse_N.defined()) inverse_N = inverse_rms(x, options.norm_eps);
      return normed(x, tensors.norm[0], inverse_N);
    }
    at::Tensor y;
    std::tie(y, mean_N, inverse_N) = at::native_layer_norm(
        x, {x.size(-1)}, widened(tensors.norm[0]), widened(tensors.norm[1]), options.norm_eps);
    return y;
  }

  /// x or norm(x), of the tokens of all ranks.
  at::Tensor tokens(const LinearTensors& tensors) {
    const at::Tensor y = tensors.norm.empty() ? tensors.x : norm(tensors);
    return options.shards ? gathered(y, options.shards) : y;
  }

  /// The left factor of the products as rows: those tokens, or gelu of them.
  at::Tensor factor(const at::Tensor& tokens) const {
    const at::ScalarType dtype = product_dtype(tokens.scalar_type(), options.native_bf16);
    if (!options.gelu) return rows(tokens).to(dtype);
    // In the dtype of products: ATen's GELU of bf16 takes twice as long as of fp32.
    at::Tensor activated = at::gelu(tokens.to(dtype));
    if (dtype != tokens.scalar_type()) round_to_bf16(activated);
    return rows(activated);
  }

  /// The product of the factor and matrix i, plus its bias.
  at::Tensor product(const at::Tensor& a, const LinearTensors& tensors, std::size_t i) const {
    const at::ScalarType dtype = tensors.x.scalar_type();
    const at::Tensor w = weight_factor(tensors.weights[i], dtype, options.native_bf16);
    if (tensors.biases.empty()) return at::mm(a, w.t());
    return at::addmm(weight_factor(tensors.biases[i], dtype, options.native_bf16), a, w.t());
  }

  /// Index of the norm of the heads of product i, if it has one.
  std::optional<std::size_t> head_norm_of(std::size_t i) const {
    for (std::size_t n = 0; n < head_norms.size(); ++n) {
      if (head_norms[n].product == i) return n;
    }
    return std::nullopt;
  }

  /// Product y with its heads normed, by norm n. Leaves the numbers of each head.
  at::Tensor with_normed_heads(const at::Tensor& y, const LinearTensors& tensors, std::size_t n) {
    const at::Tensor& weight = tensors.head_norms[n];
    const at::Tensor heads = y.view({-1, weight.size(0)});
    head_norms[n].inverse_N = inverse_rms(heads, head_norm_eps);
    return normed(heads, weight, head_norms[n].inverse_N).view(y.sizes());
  }

  /// Gradients of product y and of the weight of its norm, from that of with_normed_heads().
  NormGrads head_norm_backward(const at::Tensor& dy, const at::Tensor& y,
                               const LinearTensors& tensors, std::size_t n) const {
    const at::Tensor& weight = tensors.head_norms[n];
    const at::Tensor heads = y.view({-1, weight.size(0)});
    return norm_grads(dy.reshape(heads.sizes()).contiguous(), heads, weight,
                      head_norms[n].inverse_N);
  }

  /// Gradients of x and of the norm's parameters, from that of norm(x).
  variable_list norm_backward(const at::Tensor& dy, const LinearTensors& tensors) const {
    const at::Tensor& x = tensors.x;
    if (options.tokens_of_row) {
      const ModulationGrads grads =
          modulation_grads(dy, x, modulation(tensors), {mean_N, inverse_N});
      return {grads.dx_BLE, grads.dscale_RE, grads.dshift_RE};
    }
    if (tensors.norm.size() == 1) {
      const NormGrads grads = norm_grads(dy, x, tensors.norm[0], inverse_N);
      return {grads.dx_BLE, grads.dweight_E};
    }
    const auto [dx, dweight, dbias] = at::native_layer_norm_backward(
        dy, x, {x.size(-1)}, mean_N, inverse_N, widened(tensors.norm[0]), widened(tensors.norm[1]),
        {true, true, true});
    return {dx, dweight, dbias};
  }

  /// The gradient of tokens(x) as that of a shard: the sum over the ranks, rounded as it travels.
  at::Tensor grad_of_shard(const at::Tensor& drows, const at::Tensor& x) const {
    return reduce_scattered(
        drows.to(x.scalar_type()).view({x.size(0), options.shards.tokens, x.size(2)}),
        options.shards);
  }
};

/// Arguments of one call that are no tensors.
struct LinearCall {
  c10::intrusive_ptr<SavedLinear> saved;
  const EachProduct& each;
};

/// Inputs: x, then the parameters: matrices, their biases, norms of heads, those of the norm.
/// Outputs: one per matrix.
class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& result,
                               at::TensorList parameters, const LinearCall& call) {
    const at::Tensor x = result.contiguous();
    SavedLinear& linear = *call.saved;
    const LinearTensors tensors = linear.tensors(x, parameters);
    at::Tensor tokens = linear.tokens(tensors);
    variable_list saved{x, linear.keeps_gathered() ? tokens : at::Tensor()};
    saved.insert(saved.end(), parameters.begin(), parameters.end());

    // Each product is handed on before the next is computed.
    std::vector<std::int64_t> shape = tokens.sizes().vec();
    const at::Tensor a = linear.factor(tokens);
    tokens.reset();
    variable_list results(tensors.weights.size());
    variable_list raw_products(
        linear.head_norms.size());  // products before the norms of their heads
    for (const std::size_t i : call.each.order) {
      shape.back() = tensors.weights[i].size(0);
      at::Tensor y = linear.product(a, tensors, i).to(x.scalar_type()).view(shape);
      if (const auto n = linear.head_norm_of(i)) {
        raw_products[*n] = y;
        y = linear.with_normed_heads(y, tensors, *n);
      }
      results[i] = call.each.transform ? call.each.transform(i, y) : y;
    }
    saved.insert(saved.end(), raw_products.begin(), raw_products.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["linear"] = c10::IValue::make_capsule(call.saved);
    return results;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto linear =
        c10::static_intrusive_pointer_cast<SavedLinear>(ctx->saved_data["linear"].toCapsule());
    const at::Tensor& x = saved[0];
    const std::size_t raw_products = saved.size() - linear->head_norms.size();  // where those begin
    const LinearTensors tensors =
        linear->tensors(x, at::TensorList(saved).slice(2, raw_products - 2));

    // Gradients of the matrices, dy^T a, and of their biases. The factor `a` is freed before dx is
    // allocated.
    variable_list dys;
    variable_list dweights;
    variable_list dbiases;
    variable_list dhead_norms(linear->head_norms.size());
    {
      const at::Tensor a = linear->factor(saved[1].defined() ? saved[1] : linear->tokens(tensors));
      for (std::size_t i = 0; i < grads.size(); ++i) {
        at::Tensor dy = linear->transform_grad ? linear->transform_grad(i, grads[i]) : grads[i];
        if (const auto n = linear->head_norm_of(i)) {
          const NormGrads norm =
              linear->head_norm_backward(dy, saved[raw_products + *n], tensors, *n);
          dy = norm.dx_BLE;
          dhead_norms[*n] = norm.dweight_E;
        }
        const at::Tensor& weight = tensors.weights[i];
        dys.push_back(dy.reshape({-1, weight.size(0)}).to(a.scalar_type()));
        dweights.push_back(at::mm(dys[i].t(), a).to(gradient_dtype(weight)));
        if (tensors.biases.empty()) continue;
        dbiases.push_back(dys[i].sum(0, /*keepdim=*/false, gradient_dtype(weight)));
      }
    }

    // Gradient of the factor: the sum of dy w over the matrices, in the dtype of products.
    at::Tensor dx;
    for (std::size_t i = 0; i < dys.size(); ++i) {
      const at::Tensor w =
          weight_factor(tensors.weights[i], x.scalar_type(), linear->options.native_bf16);
      if (dx.defined()) {
        at::addmm_out(dx, dx, dys[i], w);
      } else {
        dx = at::mm(dys[i], w);
      }
    }
    dys.clear();

    // Back over the ranks, then through GELU or norm to x.
    dx = linear->options.shards ? linear->grad_of_shard(dx, x) : dx.view(x.sizes());
    if (linear->options.gelu) at::gelu_backward_out(dx, dx, x.to(dx.scalar_type()));
    variable_list dnorm{dx.to(x.scalar_type())};
    if (!tensors.norm.empty()) dnorm = linear->norm_backward(dnorm[0], tensors);
    // In the order of the inputs: x, matrices, biases, norms of heads, norm, and nothing for the
    // argument `call`.
    variable_list results{dnorm[0]};
    results.insert(results.end(), dweights.begin(), dweights.end());
    results.insert(results.end(), dbiases.begin(), dbiases.end());
    results.insert(results.end(), dhead_norms.begin(), dhead_norms.end());
    results.insert(results.end(), dnorm.begin() + 1, dnorm.end());
    results.emplace_back();
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
  ARMILLARY_CHECK(each.biases.empty() || each.biases.size() == weights.size());
  ARMILLARY_CHECK(each.head_norms.empty() || each.head_norms.size() == weights.size());
  ARMILLARY_CHECK(!(options.gelu && options.shards));
  auto saved = c10::make_intrusive<SavedLinear>();
  saved->options = options;
  saved->options.norm_weight.reset();
  saved->options.norm_bias.reset();
  saved->weights = weights.size();
  saved->biases = each.biases.size();
  saved->transform_grad = each.transform_grad;
  variable_list parameters = weights;
  parameters.insert(parameters.end(), each.biases.begin(), each.biases.end());
  saved->head_norm_eps = each.head_norm_eps;
  for (std::size_t i = 0; i < each.head_norms.size(); ++i) {
    if (!each.head_norms[i].defined()) continue;
    saved->head_norms.push_back({.product = i});
    parameters.push_back(each.head_norms[i]);
  }
  for (const at::Tensor& of_norm : {options.norm_weight, options.norm_bias}) {
    if (of_norm.defined()) parameters.push_back(of_norm);
  }
  return LinearFunction::apply(x, at::TensorList(parameters), LinearCall{saved, each});
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
