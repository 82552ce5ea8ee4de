#include "armillary/train/optimizer.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

namespace armillary::train {
namespace {

/// Sum of squares in fp64. 32 partial sums are independent of each other, so the additions overlap;
/// the order is fixed, so equal gradients give equal bits.
double sum_of_squares(std::span<const float> x) {
  constexpr std::size_t kSums = 32;
  std::array<double, kSums> sums{};
  std::size_t i = 0;
  for (; i + kSums <= x.size(); i += kSums) {
    for (std::size_t j = 0; j < kSums; ++j) {
      const double value = x[i + j];
      sums[j] += value * value;
    }
  }
  for (; i < x.size(); ++i) sums[0] += static_cast<double>(x[i]) * x[i];
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace

Optimizer::Optimizer(ParameterStore& store, const Recipe::Optimizer& options)
    : store_(store), options_(options) {}

// As torch's clip_grad_norm_: gradients that are small enough stay as they are.
double Optimizer::clip(double max_norm) {
  const std::span<float> gradients = store_.flat_gradients();
  const double norm = std::sqrt(sum_of_squares(gradients));
  const double scale = max_norm / (norm + 1e-6);  // torch's epsilon
  if (scale < 1) store_.scale_gradients(scale);
  return norm;
}

void Optimizer::step(double lr) {
  const at::NoGradGuard no_grad;
  // ATen takes one step count per parameter; all of them are the same tensor. The fused kernel
  // updates parameters, means and squares in place, in one pass.
  const at::Tensor step = at::full({}, static_cast<double>(++steps_), at::kFloat);
  at::_fused_adamw_(store_.parameters(), store_.gradients(), store_.means(), store_.squares(),
                    /*max_exp_avg_sqs=*/{},
                    std::vector<at::Tensor>(store_.parameters().size(), step), lr, options_.beta1,
                    options_.beta2, options_.weight_decay, options_.eps, /*amsgrad=*/false,
                    /*maximize=*/false);
}

}  // namespace armillary::train
