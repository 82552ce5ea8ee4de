#include "armillary/train/optimizer.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace armillary::train {
namespace {

const Recipe::Optimizer kOptions = {
    .name = "AdamW", .lr = 0.1, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6, .weight_decay = 0.5};

TEST(Optimizer, StepIsAdamW) {
  std::vector<double> x = {1.0, -2.0, 0.5};
  std::vector<double> mean(3), square(3);
  at::Tensor parameter = at::tensor({1.0F, -2.0F, 0.5F}).requires_grad_();
  ParameterStore store({parameter});
  Optimizer optimizer(store, kOptions);
  for (int step = 1; step <= 5; ++step) {
    const double lr = 0.1 / step;
    for (std::size_t i = 0; i < 3; ++i) {
      const double gradient = std::sin(10.0 * step + static_cast<double>(i));
      store.flat_gradients()[i] = static_cast<float>(gradient);
      mean[i] = 0.8 * mean[i] + 0.2 * gradient;
      square[i] = 0.9 * square[i] + 0.1 * gradient * gradient;
      const double unbiased_mean = mean[i] / (1 - std::pow(0.8, step));
      const double unbiased_square = square[i] / (1 - std::pow(0.9, step));
      x[i] -= lr * 0.5 * x[i];
      x[i] -= lr * unbiased_mean / (std::sqrt(unbiased_square) + 1e-6);
    }
    optimizer.step(lr);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(parameter.data_ptr<float>()[i], x[i], 1e-5)
          << "step " << step << " element " << i;
    }
  }
}

TEST(Optimizer, ClipScalesToTheNormAndReturnsTheOneBefore) {
  at::Tensor a = at::ones({2}).requires_grad_();
  ParameterStore store({a});
  Optimizer optimizer(store, kOptions);
  store.flat_gradients()[0] = 3;
  store.flat_gradients()[1] = -4;
  EXPECT_DOUBLE_EQ(optimizer.clip(INFINITY), 5);
  EXPECT_DOUBLE_EQ(optimizer.clip(10), 5);
  EXPECT_EQ(store.flat_gradients()[1], -4);
  EXPECT_DOUBLE_EQ(optimizer.clip(1), 5);
  EXPECT_NEAR(store.flat_gradients()[0], 0.6, 1e-6);
  EXPECT_NEAR(store.flat_gradients()[1], -0.8, 1e-6);
}

TEST(Optimizer, TheNormIsOfEveryGradient) {
  for (const std::int64_t count : {1, 31, 32, 33, 100}) {
    at::Tensor a = at::ones({count}).requires_grad_();
    ParameterStore store({a});
    Optimizer optimizer(store, kOptions);
    double squares = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(i + 1);
      store.flat_gradients()[static_cast<std::size_t>(i)] = value;
      squares += value * value;
    }
    EXPECT_DOUBLE_EQ(optimizer.clip(INFINITY), std::sqrt(squares)) << count;
  }
}

}  // namespace
}  // namespace armillary::train
