// store.cpp: each unit gets four flat buffers, of which its parameters are views: values, gradients
// and the two moments. A parameter of several units lies in the buffers of the first.
#include "armillary/train/store.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <span>

#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/model/initial_values.h"

namespace armillary::train {
namespace {

/// Flat memory of a unit, dealt out piece by piece.
class Flat {
 public:
  explicit Flat(std::int64_t count) : all_(at::zeros({count}, at::kFloat)) {}

  at::Tensor next(const model::Shape& shape) {
    const std::int64_t count = model::count_of_values(shape);
    begin_ += count;
    return all_.narrow(0, begin_ - count, count).view(shape);
  }
  const at::Tensor& all() const { return all_; }

 private:
  at::Tensor all_;
  std::int64_t begin_ = 0;
};

}  // namespace

Store::Store(const model::Model& model, std::int64_t seed) {
  const std::vector<std::string> names = model.units();
  const std::vector<model::Parameter> parameters = model.parameters();
  model::check_parameters(parameters, names, /*tp=*/1);
  std::vector<model::Parameter> ordered;  // as their pieces
  for (const std::string& name : names) {
    // The parameters that the unit owns, and their memory.
    std::vector<const model::Parameter*> owned;
    std::int64_t count = 0;
    for (const model::Parameter& parameter : parameters) {
      // One owner: a tied parameter has one value and is updated once.
      if (parameter.units.front() != name) continue;
      owned.push_back(&parameter);
      count += model::count_of_values(parameter.shape);
    }
    Flat values(count);
    Flat gradients(count);
    Flat means(count);
    Flat squares(count);
    for (const model::Parameter* parameter : owned) {
      const model::GlobalRange range = model::range_of(*parameter, 0, 1);
      Piece piece{.name = parameter->name,
                  .range = range,
                  .value = values.next(range.size),
                  .gradient = gradients.next(range.size),
                  .mean = means.next(range.size),
                  .square = squares.next(range.size)};
      model::draw_initial_values(
          *parameter, range, seed,
          {piece.value.data_ptr<float>(), static_cast<std::size_t>(piece.value.numel())});
      piece.value.set_requires_grad(true);
      // Backward adds to a gradient that is there, so gradients stay in the flat buffer.
      piece.value.mutable_grad() = piece.gradient;
      pieces_.push_back(std::move(piece));
      ordered.push_back(*parameter);
    }
    units_.push_back({.name = name, .used = {}, .gradients = gradients.all()});
  }
  // A parameter may be of several units.
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    for (Unit& unit : units_) {
      if (std::ranges::find(ordered[i].units, unit.name) != ordered[i].units.end()) {
        unit.used.push_back(i);
      }
    }
  }
}

model::Weights Store::use(int unit) const {
  if (unit < 0 || unit >= units()) {
    fail<InvalidArgument>("store: unit {} given; one of the {} that are declared is required", unit,
                          units());
  }
  const Unit& of = units_[static_cast<std::size_t>(unit)];
  std::vector<std::string> names;
  std::vector<at::Tensor> values;
  for (const std::size_t i : of.used) {
    names.push_back(pieces_[i].name);
    values.push_back(pieces_[i].value);
  }
  return {of.name, std::move(names), std::move(values)};
}

void Store::reduce(int unit, comm::Communicator& replicas) {
  const at::Tensor& gradients = units_.at(static_cast<std::size_t>(unit)).gradients;
  if (gradients.numel() == 0) return;
  comm::all_reduce_sum(replicas, std::span(gradients.data_ptr<float>(),
                                           static_cast<std::size_t>(gradients.numel())));
}

std::int64_t Store::gradient_bytes() const {
  std::int64_t bytes = 0;
  for (const Unit& unit : units_) bytes += static_cast<std::int64_t>(unit.gradients.nbytes());
  return bytes;
}

void Store::zero_gradients() {
  for (Unit& unit : units_) unit.gradients.zero_();
}

void Store::check_views() const {
  for (const Piece& piece : pieces_) {
    const at::Tensor& grad = piece.value.grad();
    if (grad.defined() && grad.const_data_ptr() == piece.gradient.const_data_ptr()) continue;
    fail<InvalidArgument>(
        "train: the gradient of parameter {} left the store's memory; a model must not replace or "
        "clear .grad",
        quote(piece.name));
  }
}

}  // namespace armillary::train
