// model_replica.h: a model with its parameters on one rank, for tests without a trainer. Values are
// those that a store draws from the same seed.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "armillary/model/initial_values.h"
#include "armillary/model/model.h"

namespace armillary::model {

/// Copies share the parameters.
class ModelReplica {
 public:
  explicit ModelReplica(std::shared_ptr<Model> model, std::int64_t seed = 1,
                        at::ScalarType dtype = at::kFloat)
      : model_(std::move(model)), specs_(model_->parameters()) {
    for (const Parameter& spec : specs_) {
      at::Tensor drawn = at::zeros(spec.shape);
      draw_initial_values(spec, whole_of(spec.shape), seed,
                          {drawn.data_ptr<float>(), static_cast<std::size_t>(drawn.numel())});
      at::Tensor value = drawn.to(dtype);
      value.set_requires_grad(true);
      value.mutable_grad() = at::zeros(spec.shape, dtype);
      values_.push_back(std::move(value));
    }
  }

  /// Values and names in the order in which the model declares them, and a value by its name.
  const std::vector<at::Tensor>& parameters() const { return values_; }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    names.reserve(specs_.size());
    for (const Parameter& spec : specs_) names.push_back(spec.name);
    return names;
  }
  const at::Tensor& parameter(const std::string& name) const {
    const auto spec = std::ranges::find(specs_, name, &Parameter::name);
    return values_.at(static_cast<std::size_t>(spec - specs_.begin()));
  }

  /// The output of the last unit.
  at::Tensor run(const ModelInputs& inputs) const {
    const auto use = [&](int unit) {
      return weights_of(model_->units()[static_cast<std::size_t>(unit)]);
    };
    return run_units(*model_, use, inputs);
  }

 private:
  Weights weights_of(const std::string& unit) const {
    std::vector<std::string> names;
    std::vector<at::Tensor> values;
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      if (std::ranges::find(specs_[i].units, unit) == specs_[i].units.end()) continue;
      names.push_back(specs_[i].name);
      values.push_back(values_[i]);
    }
    return {unit, std::move(names), std::move(values)};
  }

  std::shared_ptr<Model> model_;
  std::vector<Parameter> specs_;
  std::vector<at::Tensor> values_;
};

}  // namespace armillary::model
