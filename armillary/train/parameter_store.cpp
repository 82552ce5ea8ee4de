#include "armillary/train/parameter_store.h"

#include <ATen/Functions.h>

#include <utility>

#include "armillary/core/error.h"

namespace armillary::train {

ParameterStore::ParameterStore(std::vector<at::Tensor> parameters)
    : parameters_(std::move(parameters)) {
  std::int64_t total = 0;
  for (const at::Tensor& parameter : parameters_) {
    ARMILLARY_CHECK(parameter.scalar_type() == at::kFloat);
    total += parameter.numel();
  }
  const at::Tensor flat_values = at::empty({total}, at::kFloat);
  flat_gradients_ = at::zeros({total}, at::kFloat);
  const at::Tensor flat_means = at::zeros_like(flat_gradients_);
  const at::Tensor flat_squares = at::zeros_like(flat_gradients_);
  std::int64_t begin = 0;
  for (at::Tensor& parameter : parameters_) {
    const auto part = [&](const at::Tensor& flat) {
      return flat.narrow(0, begin, parameter.numel()).view(parameter.sizes());
    };
    const at::Tensor value = part(flat_values);
    value.copy_(parameter.detach());
    gradients_.push_back(part(flat_gradients_));
    means_.push_back(part(flat_means));
    squares_.push_back(part(flat_squares));
    parameter.set_data(value);
    parameter.mutable_grad() = gradients_.back();
    begin += parameter.numel();
  }
}

std::span<float> ParameterStore::flat_gradients() {
  return {flat_gradients_.data_ptr<float>(), static_cast<std::size_t>(flat_gradients_.numel())};
}

void ParameterStore::scale_gradients(double factor) {
  flat_gradients_.mul_(factor);
}

void ParameterStore::zero_gradients() {
  flat_gradients_.zero_();
}

}  // namespace armillary::train
