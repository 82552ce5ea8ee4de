// finite_differences.h: gradients against differences of the function itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/sanitized.h"

namespace armillary {

/// Expects `gradient` to be the central differences of `loss()` in every element of `input`, a
/// contiguous fp64 tensor that `loss` reads; its values are put back. Under sanitizers every
/// seventh element.
template <class Loss>
void expect_finite_differences(const at::Tensor& input, const at::Tensor& gradient,
                               const Loss& loss, const std::string& where) {
  constexpr double kStep = 1e-5;
  auto* values = input.data_ptr<double>();
  for (std::int64_t i = 0; i < input.numel(); i += sanitizer_samples() ? 7 : 1) {
    const double before = values[i];
    values[i] = before + kStep;
    const double above = loss();
    values[i] = before - kStep;
    const double below = loss();
    values[i] = before;
    EXPECT_NEAR(gradient.flatten()[i].template item<double>(), (above - below) / (2 * kStep), 1e-8)
        << where << ", element " << i;
  }
}

}  // namespace armillary
