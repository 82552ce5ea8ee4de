// linear.h: tokens times matrices, fused with the norm or the GELU in front of them. The one place
// that knows how a CPU multiplies fast.
//
//   x [.., in], weight [out, in] (a parameter) --> x weight^T [.., out], in the dtype of x
//
// Parameters are fp32; fp64 if x is; or bf16 if x is. With bf16 weight and bias are rounded to
// bf16, unless they are that, and so is the result; sums are fp32. A CPU without bf16 instructions
// multiplies bf16 a hundred times slower than fp32 (docs/performance.md). On such a CPU the bf16
// values are multiplied as fp32: products are the same, for they are exact in fp32, and only the
// order of the sums differs. Gradients of weights are fp32 in either case.
//
// Backward keeps x and the parameters and nothing in between: x of bf16 stays bf16, and norm or
// GELU is computed again. Products whose heads are normed are kept too.
//
// Over ranks along tp (tensor_parallel.h) x may be a shard of tokens, and the matrices the columns
// of this rank: norm, gather and products are then one function, which keeps the shard alone. The
// gradient of x is summed over the ranks; that of the norm's weight, or of its scale and shift, is
// the share of this shard.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "armillary/model/modulation.h"
#include "armillary/model/tensor_parallel.h"

namespace armillary::model {

struct LinearOptions {
  /// Multiplies bf16 by instructions for bf16 (kernel/cpu/cpu_flags.h). No effect on
  /// other dtypes.
  bool native_bf16 = false;
  // At most one of the two: the matrices then multiply a function of x.
  bool gelu = false;            ///< gelu(x).
  at::Tensor norm_weight = {};  ///< If defined: rms_norm(x, norm_weight, norm_eps) (row_ops.h).
  at::Tensor norm_bias = {};    ///< If it is defined too: ATen's layer_norm with both.
  double norm_eps = 0;
  /// If it is there: modulated_norm (modulation.h), whose scale and shift the two are, [R, in].
  std::optional<TokensOfRow> tokens_of_row = {};
  /// If there are any: x [B, K, in] is the shard of this rank, and results are of all tokens.
  /// Collective. Not with gelu.
  TokenShards shards = {};
  /// Keeps the gathered tokens until backward, which gathers them again if not.
  bool keep_gathered = false;
};

at::Tensor fused_linear(const at::Tensor& x, const at::Tensor& weight,
                        const LinearOptions& options);

/// x times several matrices. x is read once, and its gradient is one sum, in the order of the
/// matrices.
std::vector<at::Tensor> fused_linear(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                     const LinearOptions& options);

/// Work on each product as soon as it is computed, before the next one is: a layer rotates K and
/// hands it to attention while V is still to be computed.
struct EachProduct {
  std::vector<std::size_t> order;  ///< Indices of all matrices, in the order of the products.
  /// [out] of each matrix, parameters that are added to the products; none: no biases.
  std::vector<at::Tensor> biases = {};
  /// [D] of each matrix, or undefined, fp32 parameters: RMSNorm of every D values of the product, a
  /// head, before `transform`; none: no product is normed.
  std::vector<at::Tensor> head_norms = {};
  double head_norm_eps = 0;
  /// Gives the result that takes the place of product i. Called with values that have no graph.
  /// Null: the product itself.
  std::function<at::Tensor(std::size_t i, const at::Tensor& product)> transform = {};
  /// Gives the gradient of product i, of any shape, from that of its result. Kept until backward.
  std::function<at::Tensor(std::size_t i, const at::Tensor& dresult)> transform_grad = {};
};

/// Results in the order of the matrices. The order of the products changes no bit.
std::vector<at::Tensor> fused_linear(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                     const LinearOptions& options, const EachProduct& each);

/// a b, and sum += a b, without a graph, for autograd functions. `a` and `b` are of one dtype; the
/// product is fp32 if they are bf16 and not `native_bf16`, else of their dtype.
at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, bool native_bf16);
void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool native_bf16);

}  // namespace armillary::model
