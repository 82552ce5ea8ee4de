// optimizer_test.cpp: steps against AdamW by hand, the norm however gradients are cut, and units
// that are updated one by one.
#include "armillary/train/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "armillary/comm/local.h"

namespace armillary::train {
namespace {

const OptimizerOptions kOptions = {
    .name = "AdamW", .lr = 0.1, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6, .weight_decay = 0.5};

Piece piece_of(const at::Tensor& value) {
  return {.name = "w",
          .range = model::whole_of(value.sizes().vec()),
          .value = value,
          .gradient = at::zeros_like(value),
          .mean = at::zeros_like(value),
          .square = at::zeros_like(value)};
}

/// The norm of the gradients of one unit, and the begin of a step.
double clip(Optimizer& optimizer, double max_norm) {
  optimizer.add_squares(0);
  return optimizer.clip(max_norm);
}

double norm_of(const std::vector<Piece>& pieces) {
  Optimizer optimizer(pieces, kOptions);
  return clip(optimizer, INFINITY);
}

/// A bias that balances experts: neither counted nor trained.
TEST(Optimizer, ASignRateMovesAgainstTheSign) {
  Piece bias = piece_of(at::tensor({0.5F, 0.5F, 0.5F}));
  bias.sign_rate = 0.25;
  bias.gradient.copy_(at::tensor({3.0F, 0.0F, -1e-6F}));
  const Piece other = piece_of(at::tensor({1.0F}));
  other.gradient.fill_(2);
  Optimizer optimizer({bias, other}, kOptions);
  EXPECT_EQ(clip(optimizer, 1e-3), 2);
  optimizer.update(0, 0.1);
  EXPECT_TRUE(at::equal(bias.value, at::tensor({0.25F, 0.5F, 0.75F})));
  EXPECT_TRUE(at::equal(bias.mean, at::zeros_like(bias.mean)));
  EXPECT_LT(other.value.item<float>(), 1);
}

/// N3: two ranks with the same dense gradients, of squares 20, and each with experts of its own, of
/// squares 50: sqrt(120), and not that of a rank or of dense parameters that count twice.
TEST(Optimizer, TheNormCountsExpertsOnceBesideWhatRanksShare) {
  comm::run_ranks(2, [](comm::Communicator& comm) {
    Piece dense = piece_of(at::zeros({2}));
    dense.gradient.copy_(at::tensor({2.0F, -4.0F}));
    dense.is_copy = comm.rank() == 1;
    Piece experts = piece_of(at::zeros({2, 1}));
    experts.gradient.copy_(at::tensor({5.0F, -5.0F}).view({2, 1}));
    experts.is_expert = true;
    experts.unit = 1;
    Optimizer optimizer({dense, experts}, kOptions);
    for (const int unit : {0, 1}) optimizer.add_squares(unit);
    optimizer.sum_squares(comm);
    const double norm = optimizer.clip(INFINITY);
    EXPECT_DOUBLE_EQ(norm, std::sqrt(120));
    EXPECT_NEAR(norm, 10.954, 5e-4);
  });
}

/// Five steps against the formulas of the papers. Adam adds the decay to the gradient.
void expect_steps_of(const std::string& name) {
  const bool is_adam = name == "Adam";
  OptimizerOptions options = kOptions;
  options.name = name;
  std::vector<double> x = {1.0, -2.0, 0.5};
  std::vector<double> mean(3), square(3);
  const Piece piece = piece_of(at::tensor({1.0F, -2.0F, 0.5F}));
  Optimizer optimizer({piece}, options);
  for (int step = 1; step <= 5; ++step) {
    const double lr = 0.1 / step;
    for (std::size_t i = 0; i < 3; ++i) {
      double gradient = std::sin(10.0 * step + static_cast<double>(i));
      piece.gradient[static_cast<std::int64_t>(i)] = gradient;
      if (is_adam) gradient += 0.5 * x[i];
      mean[i] = 0.8 * mean[i] + 0.2 * gradient;
      square[i] = 0.9 * square[i] + 0.1 * gradient * gradient;
      const double unbiased_mean = mean[i] / (1 - std::pow(0.8, step));
      const double unbiased_square = square[i] / (1 - std::pow(0.9, step));
      if (!is_adam) x[i] -= lr * 0.5 * x[i];
      x[i] -= lr * unbiased_mean / (std::sqrt(unbiased_square) + 1e-6);
    }
    clip(optimizer, INFINITY);
    optimizer.update(0, lr);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(piece.value.data_ptr<float>()[i], x[i], 1e-5)
          << name << " step " << step << " element " << i;
      EXPECT_NEAR(piece.mean.data_ptr<float>()[i], mean[i], 1e-5) << name << " step " << step;
      EXPECT_NEAR(piece.square.data_ptr<float>()[i], square[i], 1e-5) << name << " step " << step;
    }
  }
}

TEST(Optimizer, StepIsAdamW) {
  expect_steps_of("AdamW");
}

TEST(Optimizer, StepIsAdam) {
  expect_steps_of("Adam");
}

// torch.optim.Adam(fused=True) is the op that both share.
TEST(Optimizer, WithoutDecayAdamHasTheBitsOfAdamW) {
  std::vector<at::Tensor> values;
  for (const char* name : {"Adam", "AdamW"}) {
    OptimizerOptions options = kOptions;
    options.name = name;
    options.weight_decay = 0;
    const Piece piece = piece_of(at::arange(100, at::kFloat).cos());
    Optimizer optimizer({piece}, options);
    for (int step = 1; step <= 5; ++step) {
      piece.gradient.copy_(at::arange(100, at::kFloat).mul(step).sin());
      clip(optimizer, INFINITY);
      optimizer.update(0, 0.01);
    }
    values.push_back(piece.value);
  }
  EXPECT_TRUE(at::equal(values[0], values[1]));
}

TEST(Optimizer, ClipScalesToTheNormAndReturnsTheOneBefore) {
  const Piece a = piece_of(at::ones({1}));
  const Piece b = piece_of(at::ones({1}));
  Optimizer optimizer({a, b}, kOptions);
  a.gradient.fill_(3);
  b.gradient.fill_(-4);
  EXPECT_DOUBLE_EQ(clip(optimizer, INFINITY), 5);
  EXPECT_DOUBLE_EQ(clip(optimizer, 10), 5);
  optimizer.update(0, 0);
  EXPECT_EQ(b.gradient.item<float>(), -4);
  EXPECT_DOUBLE_EQ(clip(optimizer, 1), 5);
  optimizer.update(0, 0);
  EXPECT_NEAR(a.gradient.item<float>(), 0.6, 1e-6);
  EXPECT_NEAR(b.gradient.item<float>(), -0.8, 1e-6);
}

TEST(Optimizer, TheNormIsOfEveryGradient) {
  for (const std::int64_t count : {1, 31, 32, 33, 100}) {
    const Piece piece = piece_of(at::ones({count}));
    piece.gradient.copy_(at::arange(1, count + 1, at::kFloat));
    double squares = 0;
    for (std::int64_t i = 1; i <= count; ++i) squares += static_cast<double>(i * i);
    EXPECT_DOUBLE_EQ(norm_of({piece}), std::sqrt(squares)) << count;
  }
}

// A store that is cut in other units must clip by the same factor.
TEST(Optimizer, TheNormHasTheSameBitsHoweverGradientsAreCut) {
  constexpr std::int64_t kCount = 1000;
  const Piece whole = piece_of(at::zeros({kCount}));
  whole.gradient.copy_(at::arange(kCount, at::kFloat).sin());
  const double norm = norm_of({whole});
  for (const std::vector<std::int64_t>& cuts :
       {std::vector<std::int64_t>{1, 999}, {31, 33, 0, 936}, {500, 5, 5, 490}}) {
    std::vector<Piece> pieces;
    std::int64_t begin = 0;
    for (const std::int64_t count : cuts) {
      pieces.push_back(piece_of(at::zeros({count})));
      pieces.back().gradient.copy_(whole.gradient.narrow(0, begin, count));
      begin += count;
    }
    ASSERT_EQ(begin, kCount);
    EXPECT_EQ(norm_of(pieces), norm);
  }
}

// Ranks along tp may cut what both have at other places.
TEST(Optimizer, AnElementHasTheSameBitsHoweverValuesAreCut) {
  for (const std::int64_t size : {37, 64, 100, 259}) {
    for (const std::int64_t cut : {1, 3, 5, 8, 13, 21}) {
      const at::Tensor start = at::arange(size, at::kFloat).add(1).sin();
      const Piece whole = piece_of(start.clone());
      const Piece part = piece_of(start.narrow(0, cut, size - cut).clone());
      Optimizer optimizer({whole}, kOptions);
      Optimizer optimizer_of_part({part}, kOptions);
      for (int step = 1; step <= 20; ++step) {
        const at::Tensor gradient = start.mul(1.7 * step).cos().div(step);
        whole.gradient.copy_(gradient);
        part.gradient.copy_(gradient.narrow(0, cut, size - cut));
        clip(optimizer, INFINITY);
        clip(optimizer_of_part, INFINITY);
        optimizer.update(0, 0.01);
        optimizer_of_part.update(0, 0.01);
      }
      EXPECT_TRUE(at::equal(whole.value.narrow(0, cut, size - cut), part.value))
          << size << " from " << cut;
    }
  }
}

TEST(Optimizer, UnitsAreUpdatedOneByOne) {
  const Piece a = piece_of(at::ones({2}));
  Piece b = piece_of(at::ones({2}));
  b.unit = 2;
  Optimizer optimizer({a, b}, kOptions);
  a.gradient.fill_(1);
  b.gradient.fill_(1);
  for (const int unit : {0, 1, 2}) optimizer.add_squares(unit);
  EXPECT_DOUBLE_EQ(optimizer.clip(INFINITY), 2);
  optimizer.update(2, 0.1);
  EXPECT_EQ(a.value[0].item<float>(), 1);
  EXPECT_NE(b.value[0].item<float>(), 1);
  optimizer.update(0, 0.1);
  EXPECT_TRUE(at::equal(a.value, b.value)) << "steps are counted once";
}

}  // namespace
}  // namespace armillary::train
