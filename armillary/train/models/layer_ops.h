// layer_ops.h: what a layer computes of every token: norm and linear, each for itself, and their
// pairs, which an implementation may fuse. Differentiable; dtypes and rounding as project.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "armillary/train/models/project.h"

namespace armillary::train {

/// Of RMSNorm; weight_E fp32.
struct Norm {
  at::Tensor weight_E;
  double eps = 0;
};

class LayerOps {
 public:
  virtual ~LayerOps() = default;

  virtual at::Tensor norm(const at::Tensor& x_BLE, const Norm& norm) const = 0;

  /// x times each weight [out, in]; `each` is as in project.h, its order names every weight.
  virtual std::vector<at::Tensor> linear(const at::Tensor& x_BLE,
                                         const std::vector<at::Tensor>& weights,
                                         const EachProduct& each) const = 0;

  /// The same of norm(x) and, of one weight, of gelu(x): one after the other, unless fused.
  virtual std::vector<at::Tensor> linear_of_norm(const at::Tensor& x_BLE, const Norm& norm,
                                                 const std::vector<at::Tensor>& weights,
                                                 const EachProduct& each) const;
  virtual at::Tensor linear_of_gelu(const at::Tensor& x_BLF, const at::Tensor& weight) const;

  /// Of one weight, or of several in their order.
  at::Tensor linear(const at::Tensor& x_BLE, const at::Tensor& weight) const;
  std::vector<at::Tensor> linear_of_norm(const at::Tensor& x_BLE, const Norm& norm,
                                         const std::vector<at::Tensor>& weights) const;
};

/// Each op for itself: autograd keeps norm(x) and gelu(x). `native_bf16` as in project.h.
std::shared_ptr<const LayerOps> separate_ops(bool native_bf16);

/// The fused kernel of CPUs (project.h): backward keeps x alone, and makes norm and GELU again.
std::shared_ptr<const LayerOps> fused_cpu_ops(bool native_bf16);

}  // namespace armillary::train
