// store_test.cpp: a store of two units that share a parameter: order and memory of the pieces, one
// gradient for both units, and what is refused.
#include "armillary/train/store.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"

namespace armillary::train {
namespace {

using testing::ElementsAre;
using testing::ThrowsMessage;

/// loss = 3 sum(table) sum(bias), in two units that both use the table.
class TwoUnits : public model::Model {
 public:
  std::vector<std::string> units() const override { return {"first", "last"}; }
  std::vector<model::Parameter> parameters() const override {
    return {{.name = "bias", .shape = {3}, .units = {"last"}, .init = {.mean = 2}},
            {.name = "table", .shape = {2, 2}, .units = {"first", "last"}, .init = {.mean = 1}}};
  }
  at::Tensor run(int unit, const model::Weights& weights, const at::Tensor& x,
                 const model::ModelInputs&) override {
    const at::Tensor& table = weights.at("table");
    if (unit == 0) return table.sum();
    return x * weights.at("bias").sum() + 2 * table.sum() * weights.at("bias").sum();
  }
  cost::ModelCost cost() const override { return {}; }
};

at::Tensor loss_of(TwoUnits& model, Store& store) {
  const model::ModelInputs inputs{
      {}, {}, [](const at::Tensor& q, const at::Tensor&, const at::Tensor&) { return q; }};
  return model::run_units(
      model, [&](int unit) { return store.use(unit); }, inputs);
}

TEST(Store, PiecesAreOrderedByTheUnitsThatOwnThem) {
  const Store store(TwoUnits(), 1);
  ASSERT_EQ(store.pieces().size(), 2U);
  EXPECT_EQ(store.units(), 2);
  EXPECT_EQ(store.pieces()[0].name, "table");
  EXPECT_EQ(store.pieces()[0].range, model::whole_of({2, 2}));
  EXPECT_TRUE(at::equal(store.pieces()[0].value, at::ones({2, 2})));
  EXPECT_TRUE(at::equal(store.pieces()[1].value, at::full({3}, 2.F)));
  EXPECT_TRUE(at::equal(store.pieces()[1].mean, at::zeros({3})));
  EXPECT_EQ(store.gradient_bytes(), 4 * 7);
}

TEST(Store, AParameterOfTwoUnitsHasOneGradient) {
  TwoUnits model;
  Store store(model, 1);
  store.zero_gradients();
  for (int pass = 1; pass <= 2; ++pass) {
    loss_of(model, store).backward();
    store.check_views();
    const auto p = static_cast<float>(pass);
    EXPECT_TRUE(at::equal(store.pieces()[0].gradient, at::full({2, 2}, 18 * p)));
    EXPECT_TRUE(at::equal(store.pieces()[1].gradient, at::full({3}, 12 * p)));
  }
  store.zero_gradients();
  const model::Weights weights = store.use(1);
  for (const at::Tensor& weight : weights.values()) {
    EXPECT_EQ(weight.grad().abs().sum().item<float>(), 0);
  }
}

TEST(Store, RefusesUnitsAndParametersThatAreNotDeclared) {
  Store store(TwoUnits(), 1);
  EXPECT_THAT([&] { store.use(2); },
              ThrowsMessage<InvalidArgument>(
                  "store: unit 2 given; one of the 2 that are declared is required"));
  EXPECT_THAT([&] { (void)store.use(0).at("bias"); },
              ThrowsMessage<InvalidArgument>("model: unit 'first' uses parameter 'bias', which is "
                                             "not declared for it; table is required"));
  std::vector<std::int64_t> sizes;
  const model::Weights weights = store.use(1);
  for (const at::Tensor& value : weights.values()) sizes.push_back(value.numel());
  EXPECT_THAT(sizes, ElementsAre(4, 3));
}

TEST(Store, AGradientThatLeftItsMemoryIsRefused) {
  Store store(TwoUnits(), 1);
  const at::Tensor bias = store.use(1).at("bias");
  bias.mutable_grad() = at::zeros({3});
  EXPECT_THAT([&] { store.check_views(); },
              ThrowsMessage<InvalidArgument>(
                  "train: the gradient of parameter 'bias' left the store's memory; a model must "
                  "not replace or clear .grad"));
}

}  // namespace
}  // namespace armillary::train
