// decoder_test.cpp: decoders without ranks: parameters, first loss, positions, bf16, and equality
// of the fused and the separate ops.
#include "armillary/model/decoder.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/model/decoder_cost.h"
#include "armillary/model/testing/decoder_replica.h"

namespace armillary::model {
namespace {

constexpr std::int64_t kWords = 257;

DecoderOptions small() {
  return DecoderOptions()
      .vocab_size(kWords)
      .dim(32)
      .n_layers(2)
      .n_heads(4)
      .n_kv_heads(2)
      .hidden_dim(48);
}

/// Causal attention by positions on one device, with the tokens in any order.
Attend causal(const at::Tensor& positions_L) {
  return [positions_L](const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                       const at::Tensor& v_BLGD) {
    const auto mask_LL = positions_L.unsqueeze(1).ge(positions_L.unsqueeze(0));
    return at::scaled_dot_product_attention(q_BLHD.transpose(1, 2), k_BLGD.transpose(1, 2),
                                            v_BLGD.transpose(1, 2), mask_LL, 0.0, false, {}, true)
        .transpose(1, 2);
  };
}

struct PlacedTokens {
  at::Tensor tokens_BL;
  at::Tensor positions_L;
};

PlacedTokens inputs(std::int64_t length) {
  const auto positions_L = at::arange(length, at::kLong);
  return {(positions_L * 37 + 11).remainder(kWords).unsqueeze(0), positions_L};
}

DecoderReplica make(const DecoderOptions& options, std::int64_t seed = 1) {
  return DecoderReplica(options, seed);
}

/// Makes the weights so large that attention is far from uniform and positions matter.
DecoderReplica make_sharp() {
  DecoderReplica model = make(small());
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model.parameters()) {
    if (parameter.dim() == 2) parameter.mul_(8);
  }
  return model;
}

double max_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST(Decoder, SizeCountsTheParameters) {
  for (const FeedForwardKind kind : {FeedForwardKind::Gelu, FeedForwardKind::SwiGlu}) {
    for (const std::int64_t kv_heads : {1, 2, 4}) {
      const bool tied = kv_heads == 1;
      const auto options = small().feed_forward(kind).tied(tied).n_kv_heads(kv_heads);
      const Decoder model(options);
      std::int64_t parameters = 0;
      std::int64_t matrices = 0;
      for (const Parameter& parameter : model.parameters()) {
        std::int64_t count = 1;
        for (const std::int64_t size : parameter.shape) count *= size;
        parameters += count;
        const bool table = parameter.name == "tok_embeddings.weight" && !tied;
        if (parameter.shape.size() == 2 && !table) matrices += count;
      }
      EXPECT_EQ(decoder_cost(options).parameters, parameters)
          << "tied " << tied << " kv " << kv_heads;
      EXPECT_EQ(decoder_cost(options).matmul_parameters, matrices);
    }
  }
}

/// Heads 12, KV heads 3: up to tp 3 whole groups, then multiples of 3 up to a query head a rank.
TEST(Decoder, HeadsAreSplitOverTpWithTheirKvHeads) {
  const DecoderOptions options = small().dim(48).n_heads(12).n_kv_heads(3);
  const Decoder model(options);
  const std::vector<Parameter> parameters = model.parameters();
  const std::vector<std::string> units = model.units();
  const auto range = [&](const char* of, int index, int tp) {
    const std::string name = std::string("layers.1.attention.") + of + ".weight";
    return range_of(*std::ranges::find(parameters, name, &Parameter::name), index, tp);
  };
  for (const int tp : {1, 2, 3, 6, 9, 12}) {
    check_parameters(parameters, units, tp);
    for (int index = 0; index < tp; ++index) {
      const GlobalRange q = range("wq", index, tp);
      const GlobalRange k = range("wk", index, tp);
      const GlobalRange out = range("wo", index, tp);
      const std::string where = "rank " + std::to_string(index) + " of " + std::to_string(tp);
      EXPECT_EQ(k, range("wv", index, tp)) << where;
      EXPECT_EQ(q.begin[0], out.begin[1]) << where;
      EXPECT_EQ(q.size[0], out.size[1]) << where;
      // Every query head has its KV head, 4 times narrower, and none is without query heads.
      EXPECT_LE(4 * k.begin[0], q.begin[0]) << where;
      EXPECT_LE(q.begin[0] + q.size[0], 4 * (k.begin[0] + k.size[0])) << where;
      EXPECT_EQ(q.size[0] % 4, 0) << where;
      EXPECT_GE(q.size[0], 4) << where;
      if (tp <= 3) {
        EXPECT_EQ(q.size[0], 4 * k.size[0]) << where;
      }
    }
  }
  for (const int tp : {4, 5, 8, 15}) {
    EXPECT_THROW(check_parameters(parameters, units, tp), InvalidArgument) << tp;
  }
}

TEST(Decoder, SeedAloneDecidesTheWeights) {
  const auto a = make(small(), 1).parameters();
  at::manual_seed(99);
  const auto b = make(small(), 1).parameters();
  const auto c = make(small(), 2).parameters();
  bool differs = false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i], b[i])) << "parameter " << i;
    differs |= !at::equal(a[i], c[i]);
  }
  EXPECT_TRUE(differs);
}

TEST(Decoder, UntrainedLossIsThatOfAGuess) {
  DecoderReplica model = make(small());
  const auto [tokens_BL, positions_L] = inputs(64);
  const auto logits_BLV = model.logits(tokens_BL, positions_L, causal(positions_L));
  const double loss =
      at::cross_entropy_loss(logits_BLV.flatten(0, 1), tokens_BL.flatten()).item<double>();
  EXPECT_NEAR(loss, std::log(static_cast<double>(kWords)), 0.1);
}

TEST(Decoder, OrderOfTokensInMemoryDoesNotMatter) {
  DecoderReplica model = make_sharp();
  const auto [tokens_BL, positions_L] = inputs(33);
  const auto order_L = at::randperm(33, at::kLong);
  const auto want = model.logits(tokens_BL, positions_L, causal(positions_L));
  const auto shuffled_L = positions_L.index_select(0, order_L);
  const auto got = model.logits(tokens_BL.index_select(1, order_L), shuffled_L, causal(shuffled_L));
  const double largest = want.abs().max().item<double>();
  EXPECT_LT(max_difference(got, want.index_select(1, order_L)), 1e-5 * largest);
  // Positions do matter:
  EXPECT_GT(max_difference(model.logits(tokens_BL, positions_L * 2, causal(positions_L)), want),
            0.01 * largest);
}

TEST(Decoder, RotaryPositionsAreRelative) {
  DecoderReplica model = make_sharp();
  const auto [tokens_BL, positions_L] = inputs(33);
  const auto near = model.logits(tokens_BL, positions_L, causal(positions_L));
  const auto far = model.logits(tokens_BL, positions_L + 1000000, causal(positions_L));
  EXPECT_LT(max_difference(near, far), 1e-5 * near.abs().max().item<double>());
}

TEST(Decoder, Bf16ActivationsStayCloseAndGradientsAreFp32) {
  DecoderReplica exact = make(small());
  DecoderReplica rounded = make(small().dtype(at::kBFloat16));
  const auto [tokens_BL, positions_L] = inputs(33);
  const auto want = exact.logits(tokens_BL, positions_L, causal(positions_L));
  const auto got = rounded.logits(tokens_BL, positions_L, causal(positions_L));
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  // bf16 has 8 bits; the bound is a few roundings of values near the largest logit.
  EXPECT_LT(max_difference(got, want), 0.03 * want.abs().max().item<double>());
  got.to(at::kFloat).square().sum().backward();
  want.square().sum().backward();
  const auto got_gradients = rounded.parameters();
  const auto want_gradients = exact.parameters();
  for (std::size_t i = 0; i < got_gradients.size(); ++i) {
    const auto& want_gradient = want_gradients[i].grad();
    EXPECT_EQ(got_gradients[i].grad().scalar_type(), at::kFloat);
    EXPECT_LT(max_difference(got_gradients[i].grad(), want_gradient),
              0.1 * want_gradient.abs().max().item<double>())
        << "parameter " << i;
  }
}

TEST(Decoder, Bf16IsTheSameWithAndWithoutInstructionsForIt) {
  const auto options = small().dtype(at::kBFloat16);
  DecoderReplica native = make(DecoderOptions(options).native_bf16(true));
  DecoderReplica emulated = make(DecoderOptions(options).native_bf16(false));
  const auto [tokens_BL, positions_L] = inputs(33);
  const auto want = native.logits(tokens_BL, positions_L, causal(positions_L));
  const auto got = emulated.logits(tokens_BL, positions_L, causal(positions_L));
  // Sums in another order may sometimes round to the neighbouring bf16.
  EXPECT_LT(max_difference(got, want), 0.02 * want.abs().max().item<double>());
  EXPECT_LT((got - want).to(at::kDouble).abs().mean().item<double>(),
            0.002 * want.abs().max().item<double>());
}

TEST(Decoder, FusedAndSeparateOpsAreTheSameMathematics) {
  for (const FeedForwardKind kind : {FeedForwardKind::Gelu, FeedForwardKind::SwiGlu}) {
    DecoderReplica fused = make(small().feed_forward(kind).loss_chunk_tokens(8));
    DecoderReplica separate = make(small().feed_forward(kind).loss_chunk_tokens(8).fused(false));
    const auto [tokens_BL, positions_L] = inputs(33);
    for (DecoderReplica* model : {&fused, &separate}) {
      const Attends attends(causal(positions_L));
      model->loss(tokens_BL, positions_L, tokens_BL, attends).backward();
    }
    const auto got = separate.parameters();
    const auto want = fused.parameters();
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_LE(max_difference(got[i].grad(), want[i].grad()),
                1e-5 * want[i].grad().abs().max().item<double>())
          << "parameter " << i;
    }
  }
}

TEST(Decoder, ARankWithoutTokensTakesPart) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    DecoderReplica model = make(small().dtype(dtype));
    const auto none_L = at::empty({0}, at::kLong);
    bool attended = false;
    const auto logits_BLV =
        model.logits(none_L.unsqueeze(0), none_L,
                     [&](const at::Tensor& q_BLHD, const at::Tensor&, const at::Tensor&) {
                       attended = true;
                       return q_BLHD;
                     });
    EXPECT_TRUE(attended);
    EXPECT_EQ(logits_BLV.sizes(), (at::IntArrayRef{1, 0, kWords}));
    logits_BLV.sum().backward();
  }
}

}  // namespace
}  // namespace armillary::model
