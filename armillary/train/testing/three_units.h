// three_units.h: a model of three units, and its steps unit by unit, for tests of stores.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>

#include <cstddef>
#include <string>
#include <vector>

#include "armillary/train/store.h"

namespace armillary::train {

/// Three units; the last uses the table of the first. Shapes that no number of ranks divides.
class ThreeUnits : public model::Model {
 public:
  std::vector<std::string> units() const override { return {"first", "middle", "last"}; }
  std::vector<model::Parameter> parameters() const override {
    const model::Init init{.deviation = 1};
    return {{.name = "table", .shape = {5, 3}, .units = {"first", "last"}, .init = init},
            {.name = "matrix", .shape = {3, 3}, .units = {"middle"}, .init = init},
            {.name = "bias", .shape = {3}, .units = {"middle"}, .init = init},
            {.name = "scale", .shape = {}, .units = {"last"}, .init = init}};
  }
  at::Tensor run(int unit, const model::Weights& weights, const at::Tensor& x,
                 const model::ModelInputs&) override {
    if (unit == 0) return weights.at("table").tanh();
    if (unit == 1) return (x.matmul(weights.at("matrix")) + weights.at("bias")).tanh();
    return (x * weights.at("table")).sum() * weights.at("scale");
  }
  cost::ModelCost cost() const override { return {}; }
};

/// Forward and backward, unit by unit, of `passes` passes, and the sums over the replicas of the
/// store, as programs of steps have them; the loss of one pass is `factor` times the model's.
inline void train_on(Store& store, ThreeUnits& model, double factor, int passes,
                     const Replicas& replicas = {}) {
  const model::ModelInputs inputs{
      {}, {}, [](const at::Tensor& q, const at::Tensor&, const at::Tensor&) { return q; }};
  store.zero_gradients();
  for (int pass = 1; pass <= passes; ++pass) {
    std::vector<at::Tensor> ins(3), outs(3);
    for (int unit = 0; unit < 3; ++unit) {
      const auto u = static_cast<std::size_t>(unit);
      if (unit > 0) ins[u] = outs[u - 1].detach().requires_grad_(true);
      outs[u] = model.run(unit, store.use(unit), ins[u], inputs);
      if (unit < 2) store.prefetch(unit + 1);
      store.release(unit);
    }
    at::Tensor grad = at::ones_like(outs[2]) * factor;
    for (int unit = 2; unit >= 0; --unit) {
      const auto u = static_cast<std::size_t>(unit);
      store.begin_backward(unit);
      store.use(unit);
      if (unit > 0) store.prefetch(unit - 1);
      outs[u].backward(grad);
      if (unit > 0) grad = ins[u].grad();
      store.release(unit);
      const bool sums = store.zero() >= 2 || (replicas.sharded != nullptr && pass == passes);
      if (sums) store.start_sum(unit);
      if (sums && store.zero() == 0 && unit < 2) store.start_gather_sum(unit + 1);
    }
    store.check_views();
  }
  if (store.zero() == 0 && replicas.sharded != nullptr) store.start_gather_sum(0);
  store.finish_sums();
  for (int unit = 0; unit < 3; ++unit) {
    if (replicas.copies != nullptr) store.sum_share(unit, *replicas.copies);
  }
}

}  // namespace armillary::train
