// weights.h: the parameters of one unit, by name, as a store gives them to a model.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

namespace armillary::model {

/// A value: copies share the tensors, leaves to whose gradients backward adds. They are fp32, fp64,
/// or bf16 with gradients of fp32.
class Weights {
 public:
  /// As many names as values.
  Weights(std::string unit, std::vector<std::string> names, std::vector<at::Tensor> values);

  /// @throws InvalidArgument that names the unit, if the parameter is not declared for it.
  const at::Tensor& at(std::string_view name) const;
  const std::vector<at::Tensor>& values() const { return values_; }

 private:
  std::string unit_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> values_;
};

}  // namespace armillary::model
