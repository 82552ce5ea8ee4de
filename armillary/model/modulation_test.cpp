// modulation_test.cpp: values and every gradient are those of ATen's functions on rows that are
// spread over the tokens, alone and fused with a product; rows without tokens have no gradient.
#include "armillary/model/modulation.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "armillary/model/layer_ops.h"

namespace armillary::model {
namespace {

constexpr double kModulationEps = 1e-6;
constexpr std::int64_t kModulatedDim = 6;

/// Tokens, and tables with a row for some of them.
struct ModulatedTokens {
  explicit ModulatedTokens(TokensOfRow rows) : tokens_of_row(std::move(rows)) {
    at::Generator generator = at::detail::createCPUGenerator(5);
    std::vector<std::int64_t> row_of_token;
    for (std::size_t row = 0; row < tokens_of_row.size(); ++row) {
      for (std::int64_t i = 0; i < tokens_of_row[row]; ++i) {
        row_of_token.push_back(static_cast<std::int64_t>(row));
      }
    }
    rows_L = at::tensor(row_of_token, at::kLong);
    const auto drawn = [&](at::IntArrayRef shape) {
      return at::empty(shape, at::kDouble).normal_(0, 1, generator).requires_grad_(true);
    };
    const auto tables = static_cast<std::int64_t>(tokens_of_row.size());
    x = drawn({1, rows_L.size(0), kModulatedDim});
    y = drawn({1, rows_L.size(0), kModulatedDim});
    for (at::Tensor* table : {&scale, &shift, &gate}) *table = drawn({tables, kModulatedDim});
    weight = drawn({4, kModulatedDim});
    bias = drawn({4});
  }

  /// A table with a row per token.
  at::Tensor spread(const at::Tensor& table_RE) const { return table_RE.index_select(0, rows_L); }

  at::Tensor plain_norm() const {
    return at::layer_norm(x, {kModulatedDim}, {}, {}, kModulationEps) * (1 + spread(scale)) +
           spread(shift);
  }
  Norm norm() const {
    return {
        .weight_E = scale, .eps = kModulationEps, .bias_E = shift, .tokens_of_row = tokens_of_row};
  }
  std::vector<at::Tensor> inputs() const { return {x, y, scale, shift, gate, weight, bias}; }

  TokensOfRow tokens_of_row;
  at::Tensor rows_L, x, y, scale, shift, gate, weight, bias;
};

/// The gradients of a weighted sum of the values; zeros for an input that is not used. Once for
/// each graph.
std::vector<at::Tensor> modulation_gradients(const at::Tensor& values,
                                             const ModulatedTokens& tokens) {
  for (const at::Tensor& input : tokens.inputs()) input.mutable_grad() = at::zeros_like(input);
  const at::Tensor factors = at::arange(values.numel(), at::kDouble).cos().view(values.sizes());
  (values * factors).sum().backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& input : tokens.inputs()) gradients.push_back(input.grad().clone());
  return gradients;
}

void expect_same(const at::Tensor& ours, const at::Tensor& plain, const ModulatedTokens& tokens,
                 const std::string& where) {
  ASSERT_EQ(ours.sizes(), plain.sizes()) << where;
  const auto distance = [](const at::Tensor& a, const at::Tensor& b) {
    return a.numel() == 0 ? 0.0 : (a - b).abs().max().item<double>();
  };
  EXPECT_LT(distance(ours, plain), 1e-12) << where;
  const std::vector<at::Tensor> mine = modulation_gradients(ours, tokens);
  const std::vector<at::Tensor> theirs = modulation_gradients(plain, tokens);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    EXPECT_LT(distance(mine[i], theirs[i]), 1e-12) << where << ", input " << i;
  }
}

TEST(Modulation, NormAndGateAreThoseOfRowsThatAreSpread) {
  for (const TokensOfRow& rows : {TokensOfRow{7}, TokensOfRow{3, 0, 5, 1, 0}, TokensOfRow{0, 2},
                                  TokensOfRow{0}, TokensOfRow{0, 0}, TokensOfRow{300, 0, 90}}) {
    const ModulatedTokens t(rows);
    expect_same(modulated_norm(t.x, {t.scale, t.shift, rows}, kModulationEps), t.plain_norm(), t,
                "norm");
    expect_same(gated_sum(t.x, t.y, t.gate, rows), t.x + t.spread(t.gate) * t.y, t, "gate");
  }
}

TEST(Modulation, FusedWithAProductItIsTheSame) {
  for (const TokensOfRow& rows : {TokensOfRow{3, 0, 5, 1, 0}, TokensOfRow{9}}) {
    const ModulatedTokens t(rows);
    for (const auto& ops : {separate_ops({}), fused_cpu_ops({})}) {
      const at::Tensor plain = at::linear(t.plain_norm(), t.weight, t.bias);
      expect_same(ops->linear_of_norm(t.x, t.norm(), {t.weight}, {t.bias})[0], plain, t, "product");
      expect_same(ops->norm(t.x, t.norm()), t.plain_norm(), t, "norm of the operations");
    }
  }
}

TEST(Modulation, OfBf16IsThatOfFp32Rounded) {
  const ModulatedTokens t({4, 5});
  const auto narrow = [](const at::Tensor& value) { return value.detach().to(at::kBFloat16); };
  const at::Tensor y = modulated_norm(
      narrow(t.x), {narrow(t.scale), narrow(t.shift), t.tokens_of_row}, kModulationEps);
  const auto wide = [&](const at::Tensor& value) { return narrow(value).to(at::kFloat); };
  const at::Tensor expected =
      modulated_norm(wide(t.x), {wide(t.scale), wide(t.shift), t.tokens_of_row}, kModulationEps);
  EXPECT_LE((y.to(at::kFloat) - expected).abs().max().item<float>(),
            0x1p-8 * expected.abs().max().item<float>());
}

}  // namespace
}  // namespace armillary::model
