// recompute_test.cpp: layers whose activations are not kept have the bits of those that keep them,
// in values and gradients, and keep what they say.
#include "armillary/model/recompute.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "armillary/core/error.h"
#include "armillary/model/gpt.h"
#include "armillary/model/testing/decoder_replica.h"

namespace armillary::model {
namespace {

TEST(Recomputed, KeepsNothingOfTheLayerAndGivesTheSameGradients) {
  const at::Tensor x = at::linspace(-1, 1, 12).requires_grad_(true);
  const at::Tensor weight = at::linspace(1, 2, 12).requires_grad_(true);
  int calls = 0;
  const Layer layer = [&](const at::Tensor& result) {
    ++calls;
    return (result * weight).sin() * weight;
  };
  layer(x).square().sum().backward();
  const at::Tensor dx = x.grad().clone();
  const at::Tensor dweight = weight.grad().clone();
  x.mutable_grad().reset();
  weight.mutable_grad().reset();
  calls = 0;
  const at::Tensor y = recomputed(x, {weight}, layer, layer);
  EXPECT_EQ(calls, 1);
  y.square().sum().backward();
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(at::equal(x.grad(), dx));
  EXPECT_TRUE(at::equal(weight.grad(), dweight));
}

TEST(Recomputed, ParametersHaveGradientsWhereTheInputHasNone) {
  const at::Tensor weight = at::ones({3}).requires_grad_(true);
  const Layer layer = [&](const at::Tensor& x) { return x * weight; };
  recomputed(at::full({3}, 2.0), {weight}, layer, layer).sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), at::full({3}, 2.0)));
}

TEST(Recomputed, PoliciesByName) {
  EXPECT_EQ(parse_recompute("none"), cost::Recompute::None);
  EXPECT_EQ(parse_recompute("full"), cost::Recompute::Full);
  EXPECT_EQ(parse_recompute("attention_output"), cost::Recompute::AttentionOutput);
  EXPECT_THAT([] { parse_recompute("ful"); },
              testing::ThrowsMessage<InvalidArgument>(
                  "recompute: policy 'ful' is not known; none, full or attention_output is "
                  "required; nearest: full"));
}

/// Counts the attention calls of a model of two layers, forward and backward together.
TEST(Recomputed, AttentionRunsTwiceOnlyUnderFull) {
  struct Calls {
    int attend = 0;
    int keep = 0;
    int replay = 0;
  };
  const auto calls_of = [](cost::Recompute policy) {
    ModelOptions sizes;
    sizes.dim = 32;
    sizes.n_layers = 2;
    const DecoderReplica model(
        gpt_options(sizes).vocab_size(257).recompute(policy).loss_chunk_tokens(4));
    Calls calls;
    const auto value = [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
      return q * k * v;
    };
    const Attends attends(
        [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
          ++calls.attend;
          return value(q, k, v);
        },
        [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
          ++calls.keep;
          return KeptOutput{value(q, k, v),
                            [&](const at::Tensor& q2, const at::Tensor& k2, const at::Tensor& v2) {
                              ++calls.replay;
                              return value(q2, k2, v2);
                            }};
        });
    const at::Tensor positions_L = at::arange(6, at::kLong);
    const at::Tensor tokens_BL = positions_L.unsqueeze(0);
    model.loss(tokens_BL, positions_L, tokens_BL, attends).backward();
    return std::vector<int>{calls.attend, calls.keep, calls.replay};
  };
  EXPECT_EQ(calls_of(cost::Recompute::None), (std::vector<int>{2, 0, 0}));
  EXPECT_EQ(calls_of(cost::Recompute::Full), (std::vector<int>{4, 0, 0}));
  EXPECT_EQ(calls_of(cost::Recompute::AttentionOutput), (std::vector<int>{0, 2, 2}));
}

}  // namespace
}  // namespace armillary::model
