#include "armillary/kernel/vector_math.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

namespace armillary::kernel {

void choose_vector_math() {
  // A static local runs once, on one thread; others wait for it.
  static const bool once = [] {
    const c10::NoGradGuard no_grad;
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::full({1}, 0.5, dtype);
      for (const auto function : {&at::Tensor::exp, &at::Tensor::expm1, &at::Tensor::log,
                                  &at::Tensor::log1p, &at::Tensor::sqrt, &at::Tensor::sin,
                                  &at::Tensor::cos, &at::Tensor::tanh, &at::Tensor::erf}) {
        (x.*function)();
      }
    }
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace armillary::kernel
