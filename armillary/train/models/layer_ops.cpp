#include "armillary/train/models/layer_ops.h"

#include <ATen/Functions.h>

#include <cstddef>
#include <numeric>

#include "armillary/train/models/row_ops.h"

namespace armillary::train {
namespace {

EachProduct in_order(std::size_t count) {
  EachProduct each;
  each.order.resize(count);
  std::iota(each.order.begin(), each.order.end(), std::size_t{0});
  return each;
}

class SeparateOps : public LayerOps {
 public:
  using LayerOps::linear;
  using LayerOps::linear_of_norm;

  explicit SeparateOps(bool native_bf16) : product_{.native_bf16 = native_bf16} {}

  at::Tensor norm(const at::Tensor& x_BLE, const Norm& norm) const override {
    return rms_norm(x_BLE, norm.weight_E, norm.eps);
  }

  std::vector<at::Tensor> linear(const at::Tensor& x_BLE, const std::vector<at::Tensor>& weights,
                                 const EachProduct& each) const override {
    return project(x_BLE, weights, product_, each);
  }

 protected:
  ProductOptions product_;
};

class FusedCpuOps : public SeparateOps {
 public:
  using LayerOps::linear_of_norm;
  using SeparateOps::SeparateOps;

  std::vector<at::Tensor> linear_of_norm(const at::Tensor& x_BLE, const Norm& norm,
                                         const std::vector<at::Tensor>& weights,
                                         const EachProduct& each) const override {
    ProductOptions product = product_;
    product.norm_weight = norm.weight_E;
    product.norm_eps = norm.eps;
    return project(x_BLE, weights, product, each);
  }

  at::Tensor linear_of_gelu(const at::Tensor& x_BLF, const at::Tensor& weight) const override {
    ProductOptions product = product_;
    product.gelu = true;
    return project(x_BLF, weight, product);
  }
};

}  // namespace

std::vector<at::Tensor> LayerOps::linear_of_norm(const at::Tensor& x_BLE, const Norm& norm,
                                                 const std::vector<at::Tensor>& weights,
                                                 const EachProduct& each) const {
  return linear(this->norm(x_BLE, norm), weights, each);
}

at::Tensor LayerOps::linear_of_gelu(const at::Tensor& x_BLF, const at::Tensor& weight) const {
  return linear(at::gelu(x_BLF), weight);
}

at::Tensor LayerOps::linear(const at::Tensor& x_BLE, const at::Tensor& weight) const {
  return linear(x_BLE, {weight}, in_order(1))[0];
}

std::vector<at::Tensor> LayerOps::linear_of_norm(const at::Tensor& x_BLE, const Norm& norm,
                                                 const std::vector<at::Tensor>& weights) const {
  return linear_of_norm(x_BLE, norm, weights, in_order(weights.size()));
}

std::shared_ptr<const LayerOps> separate_ops(bool native_bf16) {
  return std::make_shared<SeparateOps>(native_bf16);
}

std::shared_ptr<const LayerOps> fused_cpu_ops(bool native_bf16) {
  return std::make_shared<FusedCpuOps>(native_bf16);
}

}  // namespace armillary::train
