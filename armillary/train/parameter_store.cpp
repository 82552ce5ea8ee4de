#include "armillary/train/parameter_store.h"

#include <ATen/Functions.h>

#include <utility>

#include "armillary/core/error.h"

namespace armillary::train {

ParameterStore::ParameterStore(std::vector<at::Tensor> parameters)
    : parameters_(std::move(parameters)) {
  // The flat buffers.
  std::int64_t total = 0;
  for (const at::Tensor& parameter : parameters_) {
    if (parameter.scalar_type() != at::kFloat || !parameter.device().is_cpu()) {
      fail<InvalidArgument>("train: a parameter is {} on {}; Float on cpu is required",
                            c10::toString(parameter.scalar_type()), parameter.device().str());
    }
    total += parameter.numel();
  }
  const at::Tensor flat_values = at::empty({total}, at::kFloat);
  flat_gradients_ = at::zeros({total}, at::kFloat);
  const at::Tensor flat_means = at::zeros_like(flat_gradients_);
  const at::Tensor flat_squares = at::zeros_like(flat_gradients_);

  // Each parameter becomes a view of them: its data, its gradient, and the optimizer's state.
  std::int64_t begin = 0;
  for (at::Tensor& parameter : parameters_) {
    // This parameter's part of a flat buffer, in its shape.
    const auto part = [&](const at::Tensor& flat) {
      return flat.narrow(0, begin, parameter.numel()).view(parameter.sizes());
    };
    const at::Tensor value = part(flat_values);
    value.copy_(parameter.detach());
    gradients_.push_back(part(flat_gradients_));
    means_.push_back(part(flat_means));
    squares_.push_back(part(flat_squares));
    // The parameter stays the tensor that the model knows; only its storage changes.
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

void ParameterStore::check_views() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& grad = parameters_[i].grad();
    if (grad.defined() && grad.const_data_ptr() == gradients_[i].const_data_ptr()) continue;
    fail<InvalidArgument>(
        "train: the gradient of parameter {} left the store's memory; a model must not replace or "
        "clear .grad",
        i);
  }
}

void ParameterStore::zero_gradients() {
  flat_gradients_.zero_();
}

}  // namespace armillary::train
