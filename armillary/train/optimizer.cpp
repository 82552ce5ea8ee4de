#include "armillary/train/optimizer.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::train {
namespace {

/// Taken in fp64, in several sums that do not wait for each other.
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

Optimizer::Optimizer(std::vector<at::Tensor> parameters, const Recipe::Optimizer& options)
    : options_(options), parameters_(std::move(parameters)) {
  std::int64_t total = 0;
  for (const at::Tensor& parameter : parameters_) {
    ARMILLARY_CHECK(parameter.scalar_type() == at::kFloat);
    total += parameter.numel();
  }
  gradients_ = at::zeros({total}, at::kFloat);
  const at::Tensor means = at::zeros_like(gradients_);
  const at::Tensor squares = at::zeros_like(gradients_);
  std::int64_t begin = 0;
  for (at::Tensor& parameter : parameters_) {
    const auto part = [&](const at::Tensor& flat) {
      return flat.narrow(0, begin, parameter.numel()).view(parameter.sizes());
    };
    parameter_gradients_.push_back(part(gradients_));
    means_.push_back(part(means));
    squares_.push_back(part(squares));
    parameter.mutable_grad() = parameter_gradients_.back();
    begin += parameter.numel();
  }
}

void Optimizer::zero_gradients() {
  gradients_.zero_();
}

std::span<float> Optimizer::gradients() {
  return {gradients_.data_ptr<float>(), static_cast<std::size_t>(gradients_.numel())};
}

double Optimizer::clip(double max_norm) {
  const double norm = std::sqrt(sum_of_squares(gradients()));
  const double scale = max_norm / (norm + 1e-6);
  if (scale < 1) gradients_.mul_(scale);
  return norm;
}

void Optimizer::step(double lr) {
  const at::NoGradGuard no_grad;
  const at::Tensor step = at::full({}, static_cast<double>(++steps_), at::kFloat);
  at::_fused_adamw_(parameters_, parameter_gradients_, means_, squares_, /*max_exp_avg_sqs=*/{},
                    std::vector<at::Tensor>(parameters_.size(), step), lr, options_.beta1,
                    options_.beta2, options_.weight_decay, options_.eps, /*amsgrad=*/false,
                    /*maximize=*/false);
}

}  // namespace armillary::train
