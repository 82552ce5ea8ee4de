// project.h: tokens times matrices, the one place that knows what a CPU multiplies fast.
//
//   x [.., in], weight [out, in] (fp32 parameter) --> x weight^T [.., out], in the dtype of x
//
// x is fp32, fp64 or bf16. With bf16 the weight is rounded to bf16 and so is the result; sums are
// fp32. A CPU without BF16 instructions multiplies bf16 a hundred times slower than fp32
// (docs/performance.md), so there the bf16 values are multiplied as fp32: the same products, which
// are exact in fp32, in sums of another order. Gradients of weights are fp32 in either case.
//
// Backward keeps x and the parameters, nothing in between: bf16 stays bf16, and GELU and norm are
// made again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace armillary::train {

/// How a product is made. `native_bf16`: by instructions for bf16 (cpu_multiplies_bf16 of
/// machine.h); no effect on other dtypes.
struct ProductOptions {
  bool native_bf16 = false;
  // Of what is made from x; backward keeps x and makes it again. One of the two at most.
  bool gelu = false;            ///< gelu(x).
  at::Tensor norm_weight = {};  ///< If defined: rms_norm(x, norm_weight, norm_eps) (row_ops.h).
  double norm_eps = 0;
};

at::Tensor project(const at::Tensor& x, const at::Tensor& weight, const ProductOptions& options);

/// The same x times several matrices: x is read, and its gradient summed, once, in the order of the
/// matrices.
std::vector<at::Tensor> project(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                const ProductOptions& options);

/// What is done with each product before the next one is made.
struct EachProduct {
  std::vector<std::size_t> order;  ///< In which products are made: indices of all matrices.
  /// Called with the value of product i, without a graph; gives the result that takes its place.
  std::function<at::Tensor(std::size_t i, const at::Tensor& product)> made;
  /// The gradient of product i, of any shape, from that of the result. Kept until backward.
  std::function<at::Tensor(std::size_t i, const at::Tensor& dresult)> made_grad;
};

/// The same with each product handed on as soon as it is there. The order changes no bit.
std::vector<at::Tensor> project(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                const ProductOptions& options, const EachProduct& each);

/// a b, and sum += a b, without a graph, for what differentiates by itself. `a` and `b` are of one
/// dtype; the product is fp32 if they are bf16 and not `native_bf16`, else of their dtype.
at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, bool native_bf16);
void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool native_bf16);

}  // namespace armillary::train
