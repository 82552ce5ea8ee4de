// decoder_shards.h: a decoder on one rank along tp, for tests without a store: its ranges of
// parameters, drawn as the slices of the whole, and whole gradients from those of all ranks.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "armillary/model/decoder.h"
#include "armillary/model/initial_values.h"

namespace armillary::train {

/// The part of a whole tensor, as a view.
inline at::Tensor view_of(const at::Tensor& whole, const model::GlobalRange& range) {
  at::Tensor view = whole;
  for (std::size_t dim = 0; dim < range.size.size(); ++dim) {
    view = view.narrow(static_cast<std::int64_t>(dim), range.begin[dim], range.size[dim]);
  }
  return view;
}

class DecoderShards {
 public:
  /// Matrices are `sharpness` times their initial values: with 8, attention is far from uniform.
  /// Weights of norms differ from 1, and biases from 0. Values are fp64 if the options' dtype is,
  /// else fp32.
  DecoderShards(const model::DecoderOptions& options, int index, int ranks, double sharpness = 8)
      : model_(options), parameters_(model_.parameters()) {
    model::check_parameters(parameters_, model_.units(), ranks);
    at::Generator generator = at::detail::createCPUGenerator(4);
    for (const model::Parameter& parameter : parameters_) {
      const at::Tensor whole = at::zeros(parameter.shape);
      model::draw_initial_values(
          parameter, model::whole_of(parameter.shape), 3,
          std::span(whole.data_ptr<float>(), static_cast<std::size_t>(whole.numel())));
      if (whole.dim() == 2) whole.mul_(sharpness);
      if (whole.dim() == 1) whole.uniform_(0.5, 2, generator);
      ranges_.push_back(model::range_of(parameter, index, ranks));
      const at::ScalarType dtype = options.dtype() == at::kDouble ? at::kDouble : at::kFloat;
      at::Tensor value = view_of(whole, ranges_.back()).to(dtype).contiguous().clone();
      value.set_requires_grad(true);
      value.mutable_grad() = at::zeros_like(value);
      values_.push_back(value);
    }
  }

  at::Tensor loss(const model::ModelInputs& inputs) {
    const std::vector<std::string> units = model_.units();
    const auto use = [&](int unit) { return weights_of(units[static_cast<std::size_t>(unit)]); };
    return model::run_units(model_, use, inputs);
  }

  const std::vector<model::Parameter>& parameters() const { return parameters_; }

  /// Adds the gradients of this rank to whole ones in fp64, which are made if there are none: the
  /// sum over the ranks that have a range.
  void add_gradients_to(std::vector<at::Tensor>& whole) const {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (whole.size() == i) whole.push_back(at::zeros(parameters_[i].shape, at::kDouble));
      view_of(whole[i], ranges_[i]).add_(values_[i].grad().to(at::kDouble));
    }
  }

 private:
  model::Weights weights_of(const std::string& unit) const {
    std::vector<std::string> names;
    std::vector<at::Tensor> values;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const std::vector<std::string>& units = parameters_[i].units;
      if (std::ranges::find(units, unit) == units.end()) continue;
      names.push_back(parameters_[i].name);
      values.push_back(values_[i]);
    }
    return {unit, std::move(names), std::move(values)};
  }

  model::Decoder model_;
  std::vector<model::Parameter> parameters_;
  std::vector<model::GlobalRange> ranges_;
  std::vector<at::Tensor> values_;
};

}  // namespace armillary::train
