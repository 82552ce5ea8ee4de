// Sums over thousands of tokens: their errors must not grow with the length, as they would if terms
// were added to one long sum one by one.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/matmul.h>
#include <gtest/gtest.h>

#include "armillary/kernel/cpu_kernel.h"
#include "armillary/kernel/testing/dealt_attention.h"

namespace armillary::kernel {
namespace {

class CpuLongSums : public KernelTest {
 protected:
  /// AMX adds to its sums in tiles, product by product.
  double bound() const { return GetParam().ends_with("amx") ? 3e-5 : 1e-6; }
};

INSTANTIATE_TEST_SUITE_P(Isas, CpuLongSums, testing::ValuesIn(isa_names()),
                         [](const auto& test) { return test.param; });

/// Largest error over the largest value.
double error_of(const at::Tensor& result, const at::Tensor& exact) {
  return (result.to(at::kDouble) - exact).abs().max().item<double>() /
         exact.abs().max().item<double>();
}

// All scores are equal, and values and gradients are positive, so every term adds to the sum.
Sequences equal_scores(const plan::Mask& mask) {
  Sequences x = random_sequences({.heads = 1, .kv_heads = 1, .head_dim = 16, .value_dim = 16}, mask,
                                 at::kFloat, 11);
  x.q_BSHD.fill_(0.25);
  x.k_BSGD.fill_(0.5);
  x.v_BSGE.abs_();
  x.dout_BSHE.abs_();
  return x;
}

TEST_P(CpuLongSums, OfValuesOverKeys) {
  constexpr std::int64_t kKeys = 1 << 15;
  const plan::Mask mask = plan::full_mask({.q = 6, .kv = kKeys});
  const Sequences x = equal_scores(mask);
  const Deal deal{.q_blocks = {run(0, 6)}, .k_blocks = {run(0, kKeys)}, .q_heads = {{0, 1}}};
  const Results results = dealt_attention(kernel(), x, mask, deal, Score{.scale = 1});
  const at::Tensor mean = x.v_BSGE.to(at::kDouble).mean(1, /*keepdim=*/true);
  EXPECT_LE(error_of(results.out_BSHE, mean.expand_as(results.out_BSHE)), bound());
}

TEST_P(CpuLongSums, OfGradientsOverQueries) {
  constexpr std::int64_t kQueries = 1 << 15;
  const plan::Mask mask = plan::full_mask({.q = kQueries, .kv = 6});
  const Sequences x = equal_scores(mask);
  const Deal deal{.q_blocks = {run(0, kQueries)}, .k_blocks = {run(0, 6)}, .q_heads = {{0, 1}}};
  const Results results = dealt_attention(kernel(), x, mask, deal, Score{.scale = 1});
  // Each of six keys has a sixth of every query's weight.
  const at::Tensor dv = x.dout_BSHE.to(at::kDouble).sum(1, /*keepdim=*/true) / 6;
  EXPECT_LE(error_of(results.dv_BSGE, dv.expand_as(results.dv_BSGE)), bound());
  // dP - Delta, with the same query everywhere.
  const at::Tensor dout = x.dout_BSHE.to(at::kDouble).squeeze(0).squeeze(1);  // [S, E]
  const at::Tensor v = x.v_BSGE.to(at::kDouble).squeeze(0).squeeze(1);        // [6, E]
  const at::Tensor dp = at::matmul(dout, v.t());
  const at::Tensor ds = (dp - dp.mean(1, true)) / 6;
  const at::Tensor dk = 0.25 * ds.sum(0).view({1, 6, 1, 1});
  EXPECT_LE(error_of(results.dk_BSGD, dk.expand_as(results.dk_BSGD)), 4 * bound());
}

}  // namespace
}  // namespace armillary::kernel
