// row_ops_test.cpp: row_ops.h and linear.h against ATen's compositions, in value and gradients, and
// what they keep for backward.
#include "armillary/model/row_ops.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "armillary/model/linear.h"
#include "armillary/model/testing/counting_allocator.h"

namespace armillary::model {
namespace {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const Tensors&)>;

at::Tensor random(at::IntArrayRef shape, std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kFloat);
}

/// Output and gradients of `function` at `values`, x (the first) in `dtype`.
Tensors run_at(const Function& function, const Tensors& values, at::ScalarType dtype) {
  Tensors leaves;
  for (const at::Tensor& value : values) {
    const bool x = leaves.empty() || dtype == at::kDouble;
    leaves.push_back(value.to(x ? dtype : at::kFloat).clone().requires_grad_(true));
  }
  const at::Tensor y = function(leaves);
  y.backward(random(y.sizes(), 99).to(y.scalar_type()));
  Tensors results{y.detach()};
  for (const at::Tensor& leaf : leaves) results.push_back(leaf.grad());
  return results;
}

/// `ours` in fp32 and bf16 against `theirs` in fp64, at the values that bf16 has.
void expect_close(const Function& ours, const Function& theirs, const Tensors& values,
                  const std::string& where) {
  for (const auto& [dtype, bound] : {std::pair(at::kFloat, 1e-5), std::pair(at::kBFloat16, 0.03)}) {
    const Tensors results = run_at(ours, values, dtype);
    const Tensors required = run_at(theirs, values, at::kDouble);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const at::Tensor error = (results[i].to(at::kDouble) - required[i]).abs().max();
      EXPECT_LE(error.item<double>(), bound * required[i].abs().max().item<double>())
          << where << ' ' << dtype << " result " << i;
    }
    EXPECT_EQ(results[0].scalar_type(), dtype) << where;
    for (std::size_t i = 2; i < results.size(); ++i) {
      EXPECT_EQ(results[i].scalar_type(), at::kFloat) << where << ": gradient of a parameter";
    }
  }
}

TEST(RowOps, SwiGluIsItsFormulaInValueAndGradients) {
  const auto halves = [](const at::Tensor& x, const auto& function) {
    const std::int64_t width = x.size(-1) / 2;
    return function(x.narrow(-1, 0, width), x.narrow(-1, width, width));
  };
  for (const std::int64_t width : {1, 6, 37}) {
    const Function ours = [&](const Tensors& x) { return halves(x[0], swiglu); };
    const Function theirs = [&](const Tensors& x) {
      return halves(x[0], [](const at::Tensor& gate, const at::Tensor& up) {
        return gate / (1 + at::exp(-gate)) * up;
      });
    };
    expect_close(ours, theirs, {3 * random({2, 5, 2 * width}, 7).to(at::kBFloat16)},
                 fmt::format("width {}", width));
  }
}

TEST(RowOps, RmsNormIsATensInValueAndGradients) {
  for (const std::int64_t dim : {2, 16, 37, 128}) {
    expect_close([](const Tensors& t) { return rms_norm(t[0], t[1], 1e-5); },
                 [&](const Tensors& t) { return at::rms_norm(t[0], {dim}, t[1], 1e-5); },
                 {random({2, 9, dim}, 1), random({dim}, 2)}, "dim " + std::to_string(dim));
  }
}

TEST(RowOps, Fp64HasTheFormulasOfTheOthers) {
  const auto expect_equal = [](const Function& ours, const Function& theirs,
                               const Tensors& values) {
    const Tensors results = run_at(ours, values, at::kDouble);
    const Tensors required = run_at(theirs, values, at::kDouble);
    for (std::size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].scalar_type(), at::kDouble) << "result " << i;
      EXPECT_LE((results[i] - required[i]).abs().max().item<double>(),
                1e-13 * required[i].abs().max().item<double>())
          << "result " << i;
    }
  };
  const Function theirs = [](const Tensors& t) { return at::rms_norm(t[0], {37}, t[1], 1e-5); };
  const Tensors values{random({2, 9, 37}, 1), random({37}, 2)};
  expect_equal([](const Tensors& t) { return rms_norm(t[0], t[1], 1e-5); }, theirs, values);
  // The norm in front of a product.
  const at::Tensor matrix = random({5, 37}, 3).to(at::kDouble);
  const auto fused = [&](const Tensors& t) {
    return fused_linear(t[0], matrix, {.norm_weight = t[1], .norm_eps = 1e-5});
  };
  expect_equal(
      fused, [&](const Tensors& t) { return at::linear(theirs(t), matrix); }, values);
  // Rotation: as fp32 within its rounding, and back.
  const at::Tensor angles_LC = random({7, 3}, 4);
  const at::Tensor x_BLHD = random({2, 7, 4, 6}, 5);
  const at::Tensor y_BLHD = rotated(x_BLHD.to(at::kDouble), angles_LC.cos(), angles_LC.sin());
  EXPECT_LE((y_BLHD - rotated(x_BLHD, angles_LC.cos(), angles_LC.sin())).abs().max().item<double>(),
            1e-6);
  EXPECT_LE(
      (rotated_back(y_BLHD, angles_LC.cos(), angles_LC.sin()) - x_BLHD).abs().max().item<double>(),
      1e-6);
}

TEST(RowOps, RotatesPairs) {
  const at::Tensor angles_LC = random({7, 3}, 3);
  const auto theirs = [&](const Tensors& t) {
    const at::Tensor cos = angles_LC.to(at::kDouble).cos().view({1, 7, 1, 3});
    const at::Tensor sin = angles_LC.to(at::kDouble).sin().view({1, 7, 1, 3});
    const auto halves = t[0].chunk(2, -1);
    return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
  };
  const at::Tensor cos_LC = angles_LC.cos();
  const at::Tensor sin_LC = angles_LC.sin();
  const at::Tensor identity = at::eye(24);
  const auto ours = [&](const Tensors& t) {
    const auto rotate = [&](std::size_t /*i*/, const at::Tensor& y) {
      return rotated(y.view({2, 7, 4, 6}), cos_LC, sin_LC);
    };
    const auto rotate_grad = [&](std::size_t /*i*/, const at::Tensor& dy) {
      return rotated_back(dy, cos_LC, sin_LC);
    };
    return fused_linear(t[0].flatten(2), {identity}, {.native_bf16 = false},
                        {.order = {0}, .transform = rotate, .transform_grad = rotate_grad})[0];
  };
  expect_close(ours, theirs, {random({2, 7, 4, 6}, 4)}, "rotated");
}

TEST(FusedLinear, IsALinearLayerOfOneOrSeveralMatrices) {
  const Tensors values{random({2, 9, 32}, 1), random({16, 32}, 2), random({8, 32}, 3)};
  for (const bool gelu : {false, true}) {
    for (const bool native : {false, true}) {
      const LinearOptions options{.native_bf16 = native, .gelu = gelu};
      expect_close(
          [&](const Tensors& t) {
            const Tensors y = fused_linear(t[0], {t[1], t[2]}, options);
            return at::cat({y[0], y[1]}, -1);
          },
          [&](const Tensors& t) {
            const at::Tensor a = gelu ? at::gelu(t[0]) : t[0];
            return at::cat({at::linear(a, t[1]), at::linear(a, t[2])}, -1);
          },
          values, fmt::format("gelu {} native {}", gelu, native));
    }
  }
}

TEST(FusedLinear, HandsOnEachProductBeforeTheNextIsMadeAndChangesNoBit) {
  const at::Tensor x = random({2, 9, 32}, 1);
  const Tensors weights{random({16, 32}, 2), random({8, 32}, 3), random({24, 32}, 4)};
  const auto outcome = [&](const EachProduct* each) {
    const Tensors leaves{x.clone().requires_grad_(true), weights[0].clone().requires_grad_(true),
                         weights[1].clone().requires_grad_(true),
                         weights[2].clone().requires_grad_(true)};
    const Tensors factors(leaves.begin() + 1, leaves.end());
    const Tensors y = each != nullptr ? fused_linear(leaves[0], factors, {}, *each)
                                      : fused_linear(leaves[0], factors, {});
    at::cat(y, -1).square().sum().backward();
    Tensors results = y;
    for (const at::Tensor& leaf : leaves) results.push_back(leaf.grad());
    return results;
  };
  std::vector<std::size_t> items;
  Tensors values(3);
  const auto record = [&](std::size_t i, const at::Tensor& y) {
    EXPECT_FALSE(y.requires_grad());
    items.push_back(i);
    values[i] = y.clone();
    return y;
  };
  const EachProduct each{.order = {1, 2, 0}, .transform = record};
  const Tensors results = outcome(&each);
  const Tensors required = outcome(nullptr);
  EXPECT_EQ(items, (std::vector<std::size_t>{1, 2, 0}));
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(at::equal(values[i], required[i])) << "product " << i;
  }
  for (std::size_t i = 0; i < required.size(); ++i) {
    EXPECT_TRUE(at::equal(results[i], required[i])) << "result " << i;
  }
}

TEST(FusedLinear, OfANormIsTheProductOfTheNorm) {
  expect_close(
      [](const Tensors& t) {
        return fused_linear(t[0], t[1],
                            {.native_bf16 = false, .norm_weight = t[2], .norm_eps = 1e-5});
      },
      [](const Tensors& t) { return at::linear(at::rms_norm(t[0], {32}, t[2], 1e-5), t[1]); },
      {random({2, 9, 32}, 1), random({16, 32}, 2), random({32}, 3)}, "norm");
}

TEST(FusedLinear, OfALayerNormIsTheProductOfTheNorm) {
  expect_close(
      [](const Tensors& t) {
        return fused_linear(
            t[0], t[1],
            {.native_bf16 = false, .norm_weight = t[2], .norm_bias = t[3], .norm_eps = 1e-5});
      },
      [](const Tensors& t) {
        const at::Tensor centred = t[0] - t[0].mean(-1, /*keepdim=*/true);
        const at::Tensor variance = centred.square().mean(-1, /*keepdim=*/true);
        return at::linear(centred / (variance + 1e-5).sqrt() * t[2] + t[3], t[1]);
      },
      {random({2, 9, 32}, 1), random({16, 32}, 2), random({32}, 3), random({32}, 4)}, "layer norm");
}

TEST(FusedLinear, AddsABiasToEachProductBeforeItIsHandedOn) {
  const Tensors values{random({2, 9, 32}, 1), random({16, 32}, 2), random({8, 32}, 3),
                       random({16}, 4), random({8}, 5)};
  for (const bool native : {false, true}) {
    expect_close(
        [&](const Tensors& t) {
          // Gradients of results with another sign are those of products times -1.
          const auto negative = [](std::size_t /*i*/, const at::Tensor& y) { return -y; };
          const Tensors y = fused_linear(t[0], {t[1], t[2]}, {.native_bf16 = native},
                                         {.order = {1, 0},
                                          .biases = {t[3], t[4]},
                                          .transform = negative,
                                          .transform_grad = negative});
          return at::cat({y[0], y[1]}, -1);
        },
        [](const Tensors& t) {
          return -at::cat({at::linear(t[0], t[1], t[3]), at::linear(t[0], t[2], t[4])}, -1);
        },
        values, fmt::format("native {}", native));
  }
}

/// Forward leaves no memory but its result: no fp32 copy of a bf16 product, and no gelu(x).
TEST(FusedLinear, KeepsItsInputAlone) {
  CountingAllocator& memory = CountingAllocator::instance();
  const at::Tensor weight = random({64, 64}, 2).requires_grad_(true);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = random({512, 64}, 1).to(dtype).requires_grad_(true);
    const std::int64_t before = memory.live_bytes();
    const at::Tensor y = fused_linear(x, weight, {.native_bf16 = false, .gelu = true});
    EXPECT_EQ(memory.live_bytes() - before, static_cast<std::int64_t>(y.nbytes())) << dtype;
  }
}

}  // namespace
}  // namespace armillary::model
