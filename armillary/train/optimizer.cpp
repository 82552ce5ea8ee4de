#include "armillary/train/optimizer.h"

#include <ATen/Functions.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <cstddef>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::train {

Optimizer::Optimizer(std::vector<at::Tensor> parameters, const Recipe::Optimizer& options) {
  std::int64_t total = 0;
  for (const at::Tensor& parameter : parameters) {
    ARMILLARY_CHECK(parameter.scalar_type() == at::kFloat);
    total += parameter.numel();
  }
  gradients_ = at::zeros({total}, at::kFloat);
  std::int64_t begin = 0;
  for (at::Tensor& parameter : parameters) {
    parameter.mutable_grad() =
        gradients_.narrow(0, begin, parameter.numel()).view(parameter.sizes());
    begin += parameter.numel();
  }
  adamw_ = std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                 torch::optim::AdamWOptions(options.lr)
                                                     .betas({options.beta1, options.beta2})
                                                     .eps(options.eps)
                                                     .weight_decay(options.weight_decay));
}

Optimizer::~Optimizer() = default;

void Optimizer::zero_gradients() {
  gradients_.zero_();
}

std::span<float> Optimizer::gradients() {
  return {gradients_.data_ptr<float>(), static_cast<std::size_t>(gradients_.numel())};
}

double Optimizer::clip(double max_norm) {
  double squares = 0;
  for (const float gradient : gradients()) squares += static_cast<double>(gradient) * gradient;
  const double norm = std::sqrt(squares);
  const double scale = max_norm / (norm + 1e-6);
  if (scale < 1) gradients_.mul_(scale);
  return norm;
}

void Optimizer::step(double lr) {
  adamw_->param_groups().front().options().set_lr(lr);
  adamw_->step();
}

}  // namespace armillary::train
