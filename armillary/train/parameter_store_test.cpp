#include "armillary/train/parameter_store.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <vector>

namespace armillary::train {
namespace {

TEST(ParameterStore, ParametersKeepTheirValuesAndLieTogether) {
  at::Tensor a = at::arange(4, at::kFloat).view({2, 2}).requires_grad_();
  at::Tensor b = at::full({3}, 7.0F).requires_grad_();
  ParameterStore store({a, b});
  EXPECT_TRUE(at::equal(a, at::arange(4, at::kFloat).view({2, 2})));
  EXPECT_TRUE(at::equal(b, at::full({3}, 7.0F)));
  EXPECT_TRUE(a.is_leaf() && a.requires_grad());
  EXPECT_EQ(a.data_ptr<float>() + 4, b.data_ptr<float>());
  store.gather();
  (a.sum() + b.sum() * 2).backward();
  store.release();
  EXPECT_EQ(std::vector<float>(store.flat_gradients().begin(), store.flat_gradients().end()),
            (std::vector<float>{1, 1, 1, 1, 2, 2, 2}));
  EXPECT_EQ(store.gradients()[1].data_ptr<float>(), &store.flat_gradients()[4]);
  store.zero_gradients();
  EXPECT_EQ(b.grad().abs().sum().item<float>(), 0);
}

TEST(ParameterStore, BackwardAddsIntoTheFlatGradients) {
  at::Tensor a = at::ones({2, 2}).requires_grad_();
  at::Tensor b = at::ones({3}).requires_grad_();
  ParameterStore store({a, b});
  for (int pass = 1; pass <= 2; ++pass) {
    (a.sum() * 2 + b.sum() * 3).backward();
    const std::vector<float> got(store.flat_gradients().begin(), store.flat_gradients().end());
    const float p = static_cast<float>(pass);
    EXPECT_EQ(got, (std::vector<float>{2 * p, 2 * p, 2 * p, 2 * p, 3 * p, 3 * p, 3 * p}));
  }
  store.zero_gradients();
  EXPECT_EQ(a.grad().abs().sum().item<float>(), 0);
}

}  // namespace
}  // namespace armillary::train
