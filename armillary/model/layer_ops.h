// layer_ops.h: the operations of a layer on every token, norm and linear, and the pairs of them
// that an implementation may fuse.
//
//   AttentionImpl, FeedForwardImpl (decoder.h) --> LayerOps <-- separate_ops: one op after the
//   other
//                                                          '--- fused_cpu_ops: linear.h
//                                                          '--- tensor_parallel_ops: over ranks
//
// Differentiable. Dtypes and rounding are those of linear.h; results of implementations differ by
// rounding only.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "armillary/model/linear.h"

namespace armillary::model {

/// Parameters of an RMSNorm, or with a bias of a LayerNorm; of the dtypes of linear.h. Without a
/// weight there is no norm: the result is x.
struct Norm {
  at::Tensor weight_E;
  double eps = 0;
  at::Tensor bias_E = {};
  /// If it is there: modulated_norm (modulation.h), and the two are its scale and shift, [R, E].
  std::optional<TokensOfRow> tokens_of_row = {};
};

/// Immutable, so threads may share one.
class LayerOps {
 public:
  virtual ~LayerOps() = default;

  virtual at::Tensor norm(const at::Tensor& x_BLE, const Norm& norm) const = 0;

  /// x times each weight [out, in], in the order of `each`, which names every weight (linear.h).
  virtual std::vector<at::Tensor> linear(const at::Tensor& x_BLE,
                                         const std::vector<at::Tensor>& weights,
                                         const EachProduct& each) const = 0;

  /// linear of norm(x), and linear of gelu(x) with one weight. Unless overridden, one op after the
  /// other.
  virtual std::vector<at::Tensor> linear_of_norm(const at::Tensor& x_BLE, const Norm& norm,
                                                 const std::vector<at::Tensor>& weights,
                                                 const EachProduct& each) const;
  virtual at::Tensor linear_of_gelu(const at::Tensor& x_BLF, const at::Tensor& weight) const;

  /// The same with one weight, and with several in their order, each with a bias if there are any.
  at::Tensor linear(const at::Tensor& x_BLE, const at::Tensor& weight) const;
  std::vector<at::Tensor> linear_of_norm(const at::Tensor& x_BLE, const Norm& norm,
                                         const std::vector<at::Tensor>& weights,
                                         const std::vector<at::Tensor>& biases = {}) const;
};

/// One op after the other: autograd keeps norm(x) and gelu(x). `options` are those of every
/// product, without gelu and norm.
std::shared_ptr<const LayerOps> separate_ops(const LinearOptions& options);

/// The fused kernel of CPUs (linear.h): backward keeps x alone, and computes norm and GELU again.
std::shared_ptr<const LayerOps> fused_cpu_ops(const LinearOptions& options);

}  // namespace armillary::model
