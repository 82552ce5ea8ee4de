// layer_ops.cpp: the two implementations of LayerOps. FusedCpuOps differs from SeparateOps only in
// the pairs: it passes the norm or GELU to fused_linear as an option.
#include "armillary/model/layer_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>

#include <cstddef>
#include <numeric>

#include "armillary/model/narrow_parameters.h"
#include "armillary/model/row_ops.h"

namespace armillary::model {
namespace {

/// Products in the order of the weights, handed on unchanged.
EachProduct in_order(std::size_t count) {
  EachProduct each;
  each.order.resize(count);
  std::iota(each.order.begin(), each.order.end(), std::size_t{0});
  return each;
}

/// Pairs by the defaults of LayerOps: one op after the other.
class SeparateOps : public LayerOps {
 public:
  using LayerOps::linear;
  using LayerOps::linear_of_norm;

  explicit SeparateOps(const LinearOptions& options) : options_(options) {}

  at::Tensor norm(const at::Tensor& x_BLE, const Norm& norm) const override {
    if (norm.tokens_of_row) {
      return modulated_norm(x_BLE, {norm.weight_E, norm.bias_E, *norm.tokens_of_row}, norm.eps);
    }
    if (!norm.weight_E.defined()) return x_BLE;
    if (!norm.bias_E.defined()) return rms_norm(x_BLE, norm.weight_E, norm.eps);
    return at::layer_norm(x_BLE, {x_BLE.size(-1)}, widened(norm.weight_E), widened(norm.bias_E),
                          norm.eps);
  }

  std::vector<at::Tensor> linear(const at::Tensor& x_BLE, const std::vector<at::Tensor>& weights,
                                 const EachProduct& each) const override {
    return fused_linear(x_BLE, weights, options_, each);
  }

 protected:
  LinearOptions options_;
};

/// Pairs as one autograd function each, which keeps x alone.
class FusedCpuOps : public SeparateOps {
 public:
  using LayerOps::linear_of_norm;
  using SeparateOps::SeparateOps;

  std::vector<at::Tensor> linear_of_norm(const at::Tensor& x_BLE, const Norm& norm,
                                         const std::vector<at::Tensor>& weights,
                                         const EachProduct& each) const override {
    LinearOptions options = options_;
    options.norm_weight = norm.weight_E;
    options.norm_bias = norm.bias_E;
    options.norm_eps = norm.eps;
    options.tokens_of_row = norm.tokens_of_row;
    return fused_linear(x_BLE, weights, options, each);
  }

  at::Tensor linear_of_gelu(const at::Tensor& x_BLF, const at::Tensor& weight) const override {
    LinearOptions options = options_;
    options.gelu = true;
    return fused_linear(x_BLF, weight, options);
  }
};

}  // namespace

// Defaults of the pairs.
std::vector<at::Tensor> LayerOps::linear_of_norm(const at::Tensor& x_BLE, const Norm& norm,
                                                 const std::vector<at::Tensor>& weights,
                                                 const EachProduct& each) const {
  return linear(this->norm(x_BLE, norm), weights, each);
}

// ATen's GELU, whose input and output autograd keeps.
at::Tensor LayerOps::linear_of_gelu(const at::Tensor& x_BLF, const at::Tensor& weight) const {
  return linear(at::gelu(x_BLF), weight);
}

// Conveniences for callers that do nothing with single products.
at::Tensor LayerOps::linear(const at::Tensor& x_BLE, const at::Tensor& weight) const {
  return linear(x_BLE, {weight}, in_order(1))[0];
}

std::vector<at::Tensor> LayerOps::linear_of_norm(const at::Tensor& x_BLE, const Norm& norm,
                                                 const std::vector<at::Tensor>& weights,
                                                 const std::vector<at::Tensor>& biases) const {
  EachProduct each = in_order(weights.size());
  each.biases = biases;
  return linear_of_norm(x_BLE, norm, weights, each);
}

std::shared_ptr<const LayerOps> separate_ops(const LinearOptions& options) {
  return std::make_shared<SeparateOps>(options);
}

std::shared_ptr<const LayerOps> fused_cpu_ops(const LinearOptions& options) {
  return std::make_shared<FusedCpuOps>(options);
}

}  // namespace armillary::model
