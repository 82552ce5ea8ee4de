// moe_layer_test.cpp: routing, grouped products and the balance on one rank, against ATen and its
// autograd.
#include "armillary/model/moe_layer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "armillary/model/routed_experts.h"

namespace armillary::model {
namespace {

constexpr std::int64_t kTokensHere = 11;
constexpr std::int64_t kDimHere = 6;
constexpr std::int64_t kExpertsHere = 5;
constexpr std::int64_t kWidthHere = 7;

at::Tensor normal_fp64(at::IntArrayRef shape, std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kDouble);
}

at::Tensor leaf(const at::Tensor& values) {
  return values.clone().requires_grad_(true);
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0 : (a - b).abs().max().item<double>();
}

ExpertWeights drawn_experts() {
  return {leaf(normal_fp64({kExpertsHere, kWidthHere, kDimHere}, 1)),
          leaf(normal_fp64({kExpertsHere, kDimHere, kWidthHere}, 2)),
          leaf(normal_fp64({kExpertsHere, kWidthHere, kDimHere}, 3))};
}

/// The sum of a token's experts, each as plain products, token by token.
at::Tensor plain_experts(const at::Tensor& x_TE, const at::Tensor& experts_TK,
                         const at::Tensor& weights_TK, const ExpertWeights& weights) {
  std::vector<at::Tensor> rows;
  for (std::int64_t t = 0; t < x_TE.size(0); ++t) {
    at::Tensor sum_E = at::zeros({x_TE.size(1)}, at::kDouble);
    for (std::int64_t j = 0; j < experts_TK.size(1); ++j) {
      const auto i = experts_TK[t][j].item<std::int64_t>();
      const at::Tensor gate = at::matmul(weights.w1_XFE[i], x_TE[t]);
      const at::Tensor up = at::matmul(weights.w3_XFE[i], x_TE[t]);
      sum_E = sum_E + at::matmul(weights.w2_XEF[i], at::silu(gate) * up) * weights_TK[t][j];
    }
    rows.push_back(sum_E);
  }
  return rows.empty() ? at::zeros_like(x_TE) : at::stack(rows);
}

const RoutedExpertsOptions kAlone{.num_experts = kExpertsHere, .native_bf16 = false};

/// Choices of every kind: drawn, all tokens to one pair of experts, the same in turn.
std::vector<at::Tensor> choices(std::int64_t tokens) {
  const at::Tensor turn_T = at::arange(tokens, at::kLong);
  return {at::stack(
              {(turn_T * 3 + 1).remainder(kExpertsHere), (turn_T * 3).remainder(kExpertsHere)}, 1),
          at::tensor({4, 1}, at::kLong).expand({tokens, 2}).contiguous(),
          at::stack({turn_T.remainder(2), turn_T.remainder(2) + 2}, 1)};
}

TEST(Experts, AreSumsOfPlainProducts) {
  for (const std::int64_t tokens : {std::int64_t{0}, std::int64_t{1}, kTokensHere}) {
    int number = 0;
    for (const at::Tensor& experts_TK : choices(tokens)) {
      const std::string where = fmt::format("{} tokens, choice {}", tokens, number++);
      const at::Tensor values_TE = normal_fp64({tokens, kDimHere}, 4);
      const at::Tensor values_TK = normal_fp64({tokens, 2}, 5);
      std::vector<std::vector<at::Tensor>> gradients;
      std::vector<at::Tensor> outs;
      for (const bool is_plain : {false, true}) {
        const at::Tensor x_TE = leaf(values_TE);
        const at::Tensor weights_TK = leaf(values_TK);
        const ExpertWeights weights = drawn_experts();
        const at::Tensor out =
            is_plain ? plain_experts(x_TE, experts_TK, weights_TK, weights)
                     : routed_experts(x_TE, {experts_TK, weights_TK}, weights, kAlone);
        outs.push_back(out);
        if (tokens == 0 && is_plain) continue;  // it has no graph
        (out * normal_fp64({tokens, kDimHere}, 6)).sum().backward();
        gradients.push_back({x_TE.grad(), weights_TK.grad(), weights.w1_XFE.grad(),
                             weights.w2_XEF.grad(), weights.w3_XFE.grad()});
      }
      EXPECT_LE(largest_difference(outs[0], outs[1]), 1e-12) << where;
      if (tokens == 0) {
        for (std::size_t i = 2; i < 5; ++i)
          EXPECT_EQ(gradients[0][i].abs().max().item<double>(), 0);
        continue;
      }
      for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_LE(largest_difference(gradients[0][i], gradients[1][i]), 1e-12) << where << " " << i;
      }
    }
  }
}

TEST(Experts, OfNarrowValuesAreCloseToFp64) {
  const at::Tensor experts_TK = choices(kTokensHere)[0];
  const ExpertWeights weights = drawn_experts();
  const at::Tensor x_TE = normal_fp64({kTokensHere, kDimHere}, 4);
  const auto out = [&](at::ScalarType dtype, at::ScalarType parameters) {
    const ExpertWeights narrow{weights.w1_XFE.detach().to(parameters),
                               weights.w2_XEF.detach().to(parameters),
                               weights.w3_XFE.detach().to(parameters)};
    const at::Tensor weights_TK =
        at::full({kTokensHere, 2}, 0.5, dtype == at::kDouble ? at::kDouble : at::kFloat);
    return routed_experts(x_TE.to(dtype), {experts_TK, weights_TK}, narrow, kAlone);
  };
  const at::Tensor exact = out(at::kDouble, at::kDouble);
  const double largest = exact.abs().max().item<double>();
  EXPECT_LE(largest_difference(out(at::kFloat, at::kFloat).to(at::kDouble), exact), 1e-5 * largest);
  const at::Tensor bf16 = out(at::kBFloat16, at::kFloat);
  EXPECT_EQ(bf16.scalar_type(), at::kBFloat16);
  EXPECT_LE(largest_difference(bf16.to(at::kDouble), exact), 0.1 * largest);
}

MoeOptions router_options() {
  return {.num_experts = kExpertsHere, .top_k = 2, .moe_inter_dim = kWidthHere};
}

/// E6: ties go to the expert of the lowest number.
TEST(Router, TiesGoToTheLowestNumber) {
  const at::Tensor gate_XE = at::zeros({kExpertsHere, kDimHere}, at::kDouble);
  const at::Tensor x_TE = normal_fp64({3, kDimHere}, 7);
  const Routes even = route(x_TE, {gate_XE}, router_options(), {});
  EXPECT_TRUE(at::equal(even.experts_TK, at::tensor({0, 1}, at::kLong).expand({3, 2})));
  EXPECT_LE(largest_difference(even.weights_TK, at::full({3, 2}, 0.5, at::kDouble)), 1e-15);
  // Experts 1 and 3 are equal, and above the others.
  const at::Tensor some_XE = gate_XE.clone();
  some_XE.select(0, 1).fill_(1);
  some_XE.select(0, 3).fill_(1);
  const Routes some = route(at::ones({1, kDimHere}, at::kDouble), {some_XE}, router_options(), {});
  EXPECT_TRUE(at::equal(some.experts_TK, at::tensor({1, 3}, at::kLong).unsqueeze(0)));
}

TEST(Router, ABiasCountsInTheChoiceAlone) {
  const at::Tensor gate_XE = normal_fp64({kExpertsHere, kDimHere}, 8);
  const at::Tensor x_TE = normal_fp64({kTokensHere, kDimHere}, 9);
  MoeOptions options = router_options();
  options.top_k = 1;
  options.route_norm = false;
  options.load_balance_coeff = 0.01;
  const at::Tensor bias_X =
      at::zeros({kExpertsHere}, at::kDouble).index_fill(0, at::tensor({3}, at::kLong), 100);
  const Routes routes = route(x_TE, {gate_XE, bias_X}, options, {});
  EXPECT_TRUE(at::equal(routes.experts_TK, at::full({kTokensHere, 1}, 3, at::kLong)));
  const at::Tensor scores_TX = at::softmax(at::matmul(x_TE, gate_XE.t()), 1);
  EXPECT_LE(largest_difference(routes.weights_TK, scores_TX.narrow(1, 3, 1)), 1e-15);
}

/// Weights and their gradient in the gate, by plain autograd.
TEST(Router, GradientsAreThoseOfPlainAutograd) {
  for (const RouterScore score : {RouterScore::Softmax, RouterScore::Sigmoid}) {
    for (const bool norm : {false, true}) {
      MoeOptions options = router_options();
      options.score = score;
      options.route_norm = norm;
      options.route_scale = 2.5;
      const at::Tensor dweights_TK = normal_fp64({kTokensHere, 2}, 10);
      const at::Tensor gate_XE = leaf(normal_fp64({kExpertsHere, kDimHere}, 8));
      const at::Tensor x_TE = leaf(normal_fp64({kTokensHere, kDimHere}, 9));
      const Routes routes = route(x_TE, {gate_XE}, options, {});
      (routes.weights_TK * dweights_TK).sum().backward();

      const at::Tensor plain_XE = leaf(gate_XE.detach());
      const at::Tensor plain_TE = leaf(x_TE.detach());
      const at::Tensor logits_TX = at::matmul(plain_TE, plain_XE.t());
      const bool is_softmax = score == RouterScore::Softmax;
      const at::Tensor scores_TX = is_softmax ? at::softmax(logits_TX, 1) : at::sigmoid(logits_TX);
      at::Tensor weights_TK = scores_TX.gather(1, routes.experts_TK);
      if (norm) weights_TK = weights_TK / weights_TK.sum(1, true);
      weights_TK = weights_TK * 2.5;
      (weights_TK * dweights_TK).sum().backward();
      EXPECT_LE(largest_difference(routes.weights_TK, weights_TK), 1e-14);
      EXPECT_LE(largest_difference(gate_XE.grad(), plain_XE.grad()), 1e-13);
      EXPECT_LE(largest_difference(x_TE.grad(), plain_TE.grad()), 1e-13);
    }
  }
}

/// The balance loss as it is written, of two sequences; shares are numbers.
TEST(Router, TheBalanceLossPullsAsItsFormula) {
  for (const RouterScore score : {RouterScore::Softmax, RouterScore::Sigmoid}) {
    for (const BalanceGroup over : {BalanceGroup::Sequence, BalanceGroup::Batch}) {
      MoeOptions options = router_options();
      options.score = score;
      options.router_aux_loss_coef = 0.3;
      options.balance_over = over;
      const at::Tensor number_T = at::arange(kTokensHere, at::kLong).ge(4).to(at::kLong);
      const RouterPlace place{
          .sequences = {
              .number_L = number_T, .count = 2, .sequence_share = 0.25, .pass_share = 0.5}};
      const at::Tensor gate_XE = leaf(normal_fp64({kExpertsHere, kDimHere}, 8));
      const at::Tensor x_TE = normal_fp64({kTokensHere, kDimHere}, 9);
      const Routes routes = route(x_TE, {gate_XE}, options, place);
      (routes.weights_TK * 0).sum().backward();

      const at::Tensor plain_XE = leaf(gate_XE.detach());
      const at::Tensor logits_TX = at::matmul(x_TE, plain_XE.t());
      at::Tensor scores_TX =
          score == RouterScore::Softmax ? at::softmax(logits_TX, 1) : at::sigmoid(logits_TX);
      scores_TX = scores_TX / scores_TX.sum(1, true);
      at::Tensor loss = at::zeros({}, at::kDouble);
      const bool by_sequence = over == BalanceGroup::Sequence;
      for (int sequence = 0; sequence < (by_sequence ? 2 : 1); ++sequence) {
        const at::Tensor of_it_T =
            by_sequence ? number_T.eq(sequence) : at::ones({kTokensHere}, at::kBool);
        const auto tokens = of_it_T.sum().item<double>();
        for (std::int64_t expert = 0; expert < kExpertsHere; ++expert) {
          const at::Tensor pairs_T = routes.experts_TK.eq(expert).any(1).logical_and(of_it_T);
          const double share = pairs_T.sum().item<double>() / (2 * tokens);
          const at::Tensor mean = (scores_TX.select(1, expert) * of_it_T).sum() / tokens;
          loss = loss + mean * (share * kExpertsHere * (by_sequence ? 0.25 : 0.5) * 0.3);
        }
      }
      loss.backward();
      EXPECT_LE(largest_difference(gate_XE.grad(), plain_XE.grad()), 1e-14)
          << static_cast<int>(score) << " " << static_cast<int>(over);
    }
  }
}

/// Logits so far below 0 that no score of a token is above it.
TEST(Router, ScoresThatAreAllZeroHaveFiniteGradients) {
  MoeOptions options = router_options();
  options.score = RouterScore::Sigmoid;
  options.router_aux_loss_coef = 0.3;
  const at::Tensor gate_XE = leaf(at::full({kExpertsHere, kDimHere}, -1000.0, at::kDouble));
  const Routes routes = route(at::ones({1, kDimHere}, at::kDouble), {gate_XE}, options, {});
  EXPECT_EQ(routes.weights_TK.abs().max().item<double>(), 0);
  routes.weights_TK.sum().backward();
  EXPECT_EQ(gate_XE.grad().abs().max().item<double>(), 0);
}

/// E5: only backward leaves what moves the bias, once.
TEST(Router, TheGradientOfTheBiasCountsTokens) {
  MoeOptions options = router_options();
  options.load_balance_coeff = 0.01;
  const at::Tensor bias_X = leaf(at::zeros({kExpertsHere}, at::kDouble));
  const at::Tensor gate_XE = leaf(normal_fp64({kExpertsHere, kDimHere}, 8));
  const at::Tensor x_TE = normal_fp64({kTokensHere, kDimHere}, 9);
  const auto counts = [](const Routes& routes, std::int64_t expert) {
    return routes.experts_TK.eq(expert).sum().item<double>();
  };
  route(x_TE, {gate_XE, bias_X}, options, {});
  EXPECT_FALSE(bias_X.grad().defined());
  const Routes routes = route(x_TE, {gate_XE, bias_X}, options, {});
  routes.weights_TK.sum().backward();
  for (std::int64_t expert = 0; expert < kExpertsHere; ++expert) {
    EXPECT_EQ(bias_X.grad()[expert].item<double>(),
              kExpertsHere * counts(routes, expert) - 2 * kTokensHere);
  }
}

}  // namespace
}  // namespace armillary::model
