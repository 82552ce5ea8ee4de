// narrow_parameters.h: parameters of bf16, whose gradients are summed in fp32. Autograd gives the
// gradient of a cast or a look-up the dtype of its input, so both are functions of their own here.
#pragma once

#include <ATen/core/Tensor.h>

namespace armillary::model {

/// The dtype of gradients of a parameter: fp32, or fp64 if it is that.
inline at::ScalarType gradient_dtype(const at::Tensor& parameter) {
  return parameter.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// The parameter in the dtype of its gradients. Differentiable; itself unless it is bf16.
at::Tensor widened(const at::Tensor& parameter);

/// Rows of a table [V, E], at indices of any shape, in the dtype of its gradients. Differentiable.
at::Tensor rows_of_table(const at::Tensor& table_VE, const at::Tensor& rows);

}  // namespace armillary::model
