#include "armillary/kernel/testing/naive_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace armillary::kernel {
namespace {

TEST(NaiveAttention, OneQueryOverTwoKeysByHand) {
  // Scores 0 and ln 3: weights 1/4 and 3/4.
  const Sequences x{.q_BSHD = at::ones({1, 1, 1, 1}, at::kDouble),
                    .k_BSGD = at::tensor({0.0, std::log(3.0)}, at::kDouble).view({1, 2, 1, 1}),
                    .v_BSGE = at::tensor({4.0, 8.0}, at::kDouble).view({1, 2, 1, 1}),
                    .dout_BSHE = at::ones({1, 1, 1, 1}, at::kDouble)};
  const Results y = naive_attention(x, plan::full_mask({.q = 1, .kv = 2}), 1);
  EXPECT_NEAR(y.out_BSHE.item<double>(), 7, 1e-15);
  EXPECT_NEAR(y.lse_BSH.item<double>(), std::log(4.0), 1e-15);
  // dS = P (v - out) = (-3/4, 3/4); dk = dS q; dq = dS k.
  EXPECT_NEAR(y.dk_BSGD[0][0].item<double>(), -0.75, 1e-15);
  EXPECT_NEAR(y.dk_BSGD[0][1].item<double>(), 0.75, 1e-15);
  EXPECT_NEAR(y.dv_BSGE[0][1].item<double>(), 0.75, 1e-15);
  EXPECT_NEAR(y.dq_BSHD.item<double>(), 0.75 * std::log(3.0), 1e-15);
}

// Features whose result is computed by hand: scores 4 and -4 with softcap 2, minus 3 and 0 for the
// distance (the query has the position of the last key), and a sink of 0.
TEST(NaiveAttention, FeaturesByHand) {
  const Sequences x{.q_BSHD = at::ones({1, 1, 1, 1}, at::kDouble),
                    .k_BSGD = at::tensor({4.0, -4.0}, at::kDouble).view({1, 2, 1, 1}),
                    .v_BSGE = at::tensor({1.0, 5.0}, at::kDouble).view({1, 2, 1, 1}),
                    .dout_BSHE = at::ones({1, 1, 1, 1}, at::kDouble)};
  const Score score{.scale = 1, .softcap = 2, .alibi_slopes_H = at::full({1}, 3.0)};
  const Results y = naive_attention(x, plan::full_mask({.q = 1, .kv = 2}), score, at::zeros({1}));
  const double first = 2 * std::tanh(2.0) - 3;
  const double last = -2 * std::tanh(2.0);
  const double sum = std::exp(first) + std::exp(last) + 1;
  const double out = (std::exp(first) + 5 * std::exp(last)) / sum;
  EXPECT_NEAR(y.out_BSHE.item<double>(), out, 1e-15);
  EXPECT_NEAR(y.lse_BSH.item<double>(), std::log(sum), 1e-15);
  EXPECT_NEAR(y.max_logit_H.item<double>(), first, 1e-15);
  EXPECT_NEAR(y.dsinks_H.item<double>(), -out / sum, 1e-15);
  const double bend = 1 - std::tanh(2.0) * std::tanh(2.0);
  EXPECT_NEAR(y.dk_BSGD[0][0].item<double>(), std::exp(first) / sum * (1 - out) * bend, 1e-15);
}

TEST(NaiveAttention, RelativeErrorSeesNanAndInfinity) {
  const double inf = std::numeric_limits<double>::infinity();
  const at::Tensor required = at::tensor({1.0, -inf}, at::kDouble);
  EXPECT_EQ(relative_error(required, required), 0);
  EXPECT_EQ(relative_error(at::tensor({1.5, -inf}, at::kDouble), required), 0.5);
  EXPECT_EQ(relative_error(at::tensor({1.0, 0.0}, at::kDouble), required), inf);
  EXPECT_TRUE(std::isnan(relative_error(at::tensor({std::nan(""), -inf}, at::kDouble), required)));
}

}  // namespace
}  // namespace armillary::kernel
