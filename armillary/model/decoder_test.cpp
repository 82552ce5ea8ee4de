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
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/model/decoder_cost.h"
#include "armillary/model/gpt2.h"
#include "armillary/model/testing/decoder_replica.h"

namespace armillary::model {
namespace {

constexpr std::int64_t kVocabulary = 257;

DecoderOptions small() {
  return DecoderOptions()
      .vocab_size(kVocabulary)
      .dim(32)
      .n_layers(2)
      .n_heads(4)
      .n_kv_heads(2)
      .hidden_dim(48);
}

/// The same as GPT-2 has it, with a row for each of 33 positions.
DecoderOptions small_gpt2() {
  return small().norm(NormKind::Layer).bias(true).max_seq_len(33);
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
  return {(positions_L * 37 + 11).remainder(kVocabulary).unsqueeze(0), positions_L};
}

DecoderReplica make(const DecoderOptions& options, std::int64_t seed = 1) {
  return DecoderReplica(options, seed);
}

/// Makes the weights so large that attention is far from uniform and positions matter.
DecoderReplica make_sharp(const DecoderOptions& options = small()) {
  DecoderReplica model = make(options);
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model.parameters()) {
    if (parameter.dim() == 2) parameter.mul_(8);
  }
  return model;
}

double max_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

/// Parameters of the model and of its layers, and those that multiply each token, by their shapes.
void expect_cost_of_the_shapes(const DecoderOptions& options, const std::string& where) {
  std::int64_t parameters = 0;
  std::int64_t in_layers = 0;
  std::int64_t matrices = 0;
  for (const Parameter& parameter : Decoder(options).parameters()) {
    const std::int64_t count = count_of_values(parameter.shape);
    parameters += count;
    if (parameter.name.starts_with("layers.")) in_layers += count;
    const bool is_looked_up = parameter.name == "pos_embeddings.weight" ||
                              (parameter.name == "tok_embeddings.weight" && !options.tied());
    if (parameter.shape.size() == 2 && !is_looked_up) matrices += count;
  }
  const cost::ModelCost cost = decoder_cost(options);
  EXPECT_EQ(cost.parameters, parameters) << where;
  EXPECT_EQ(cost.layer_parameters, in_layers) << where;
  EXPECT_EQ(cost.matmul_parameters, matrices) << where;
  EXPECT_EQ(cost.with_layers(5).parameters,
            decoder_cost(DecoderOptions(options).n_layers(5)).parameters)
      << where;
}

TEST(Decoder, SizeCountsTheParameters) {
  for (const FeedForwardKind kind : {FeedForwardKind::Gelu, FeedForwardKind::SwiGlu}) {
    for (const std::int64_t kv_heads : {1, 2, 4}) {
      for (const std::int64_t words : {1, 257, 300}) {
        for (DecoderOptions options :
             {small(), small_gpt2(), small().qkv_bias(true), small().qk_norm(true).head_dim(12)}) {
          const bool tied = kv_heads == 1;
          options.feed_forward(kind).tied(tied).n_kv_heads(kv_heads).vocab_size(words);
          expect_cost_of_the_shapes(options, fmt::format("swiglu {}, kv {}, words {}, bias {}",
                                                         kind == FeedForwardKind::SwiGlu, kv_heads,
                                                         words, options.bias()));
        }
      }
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

/// The number that is published of GPT-2, and one counted by hand: a layer of XL has 12 dim^2 in
/// its matrices and 13 dim beside.
TEST(Decoder, Gpt2HasItsPublishedParameters) {
  ModelOptions sizes;
  sizes.dim = 768;
  sizes.n_layers = 12;
  sizes.n_heads = 12;
  sizes.vocab_size = 50257;
  sizes.max_seq_len = 1024;
  sizes.enable_weight_tying = true;
  EXPECT_EQ(decoder_cost(gpt2_options(sizes)).parameters, 124439808);
  sizes.dim = 1600;
  sizes.n_layers = 48;
  sizes.n_heads = 25;
  const std::int64_t layer = 12 * 1600 * 1600 + 13 * 1600;
  EXPECT_EQ(decoder_cost(gpt2_options(sizes)).parameters,
            48 * layer + 3200 + std::int64_t{50257 + 1024} * 1600);
}

/// Biases lie with the outputs that they are added to; what every rank adds to its tokens is whole.
TEST(Decoder, BiasesAreCutLikeTheOutputsOfTheirMatrices) {
  const std::vector<Parameter> all = Decoder(small_gpt2()).parameters();
  const auto parameter = [&](const std::string& name) {
    return *std::ranges::find(all, name, &Parameter::name);
  };
  for (const char* name : {"attention.wq", "attention.wk", "attention.wv", "feed_forward.w1"}) {
    const Parameter weight = parameter(fmt::format("layers.1.{}.weight", name));
    const Parameter bias = parameter(fmt::format("layers.1.{}.bias", name));
    EXPECT_EQ(bias.placement, TpSplit::Columns) << name;
    EXPECT_EQ(bias.grain, weight.grain) << name;
    EXPECT_EQ(bias.shape, Shape{weight.shape[0]}) << name;
    EXPECT_EQ(range_of(bias, 1, 2).begin[0], range_of(weight, 1, 2).begin[0]) << name;
  }
  for (const char* name : {"layers.0.attention.wo.bias", "layers.0.feed_forward.w2.bias",
                           "layers.0.ffn_norm.bias", "norm.bias", "pos_embeddings.weight"}) {
    EXPECT_EQ(parameter(name).placement, TpSplit::Whole) << name;
  }
  check_parameters(all, Decoder(small_gpt2()).units(), 2);
}

TEST(Decoder, NormsOfHeadsAreWholeAndBiasesOfQkvAreCut) {
  const DecoderOptions options = small().qkv_bias(true).qk_norm(true).head_dim(12);
  const std::vector<Parameter> all = Decoder(options).parameters();
  const auto parameter = [&](const std::string& name) {
    return *std::ranges::find(all, "layers.0.attention." + name, &Parameter::name);
  };
  EXPECT_EQ(parameter("wq.weight").shape, (Shape{48, 32}));
  EXPECT_EQ(parameter("wo.weight").shape, (Shape{32, 48}));
  EXPECT_EQ(parameter("wk.bias").shape, Shape{24});
  EXPECT_EQ(parameter("wk.bias").placement, TpSplit::Columns);
  for (const char* norm : {"q_norm.weight", "k_norm.weight"}) {
    EXPECT_EQ(parameter(norm).shape, Shape{12}) << norm;
    EXPECT_EQ(parameter(norm).placement, TpSplit::Whole) << norm;
  }
  EXPECT_EQ(std::ranges::find(all, "layers.0.attention.wo.bias", &Parameter::name), all.end());
  EXPECT_EQ(range_of(parameter("wq.bias"), 1, 2).begin, Shape{24});
}

/// Frequencies of linear scaling are those of positions so much nearer, and yarn scales scores.
TEST(Decoder, RopeScalingMovesPositions) {
  const auto [tokens_BL, positions_L] = inputs(33);
  const auto logits = [&](const char* scaling, const at::Tensor& places_L) {
    DecoderReplica model = make_sharp(small().rope_scaling(parse_rope_scaling(scaling)));
    return model.logits(tokens_BL, places_L, causal(positions_L));
  };
  const at::Tensor plain = logits("none", positions_L);
  const double largest = plain.abs().max().item<double>();
  EXPECT_LT(max_difference(logits("linear:factor=4", positions_L * 4), plain), 1e-5 * largest);
  EXPECT_GT(max_difference(logits("linear:factor=4", positions_L), plain), 0.01 * largest);
  EXPECT_GT(max_difference(logits("yarn:factor=1,original=64,attention=2", positions_L), plain),
            0.01 * largest);
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
  EXPECT_NEAR(loss, std::log(static_cast<double>(kVocabulary)), 0.1);
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

TEST(Decoder, LearnedPositionsAreThoseInTheWholeSequenceAndEnd) {
  const DecoderReplica model = make(small_gpt2());
  const PlacedTokens all = inputs(33);
  const at::Tensor order_L = at::randperm(33, at::kLong);
  const at::Tensor shuffled_L = all.positions_L.index_select(0, order_L);
  const at::Tensor want = model.logits(all.tokens_BL, all.positions_L, causal(all.positions_L))
                              .index_select(1, order_L);
  const at::Tensor got =
      model.logits(all.tokens_BL.index_select(1, order_L), shuffled_L, causal(shuffled_L));
  EXPECT_LT(max_difference(got, want), 1e-5 * want.abs().max().item<double>());

  // The second half alone, as a rank has it. Attention gives each token its own value.
  const auto itself = [](const at::Tensor&, const at::Tensor&, const at::Tensor& v_BLGD) {
    return v_BLGD.repeat_interleave(2, 2);
  };
  const auto half = [](const at::Tensor& x) { return x.narrow(-1, 16, 17); };
  const at::Tensor whole = model.logits(all.tokens_BL, all.positions_L, itself).narrow(1, 16, 17);
  const double largest = whole.abs().max().item<double>();
  EXPECT_LT(max_difference(model.logits(half(all.tokens_BL), half(all.positions_L), itself), whole),
            1e-5 * largest);
  EXPECT_GT(
      max_difference(model.logits(half(all.tokens_BL), half(all.positions_L) - 16, itself), whole),
      0.01 * largest);
  EXPECT_THAT([&] { model.logits(all.tokens_BL, all.positions_L + 7, itself); },
              testing::ThrowsMessage<InvalidArgument>(
                  "model: a token at position 39; positions below 33, the rows of "
                  "pos_embeddings.weight, are required; nearest: model.max_seq_len 40"));
}

TEST(Decoder, RotaryPositionsAreRelative) {
  DecoderReplica model = make_sharp();
  const auto [tokens_BL, positions_L] = inputs(33);
  const auto near = model.logits(tokens_BL, positions_L, causal(positions_L));
  const auto far = model.logits(tokens_BL, positions_L + 1000000, causal(positions_L));
  EXPECT_LT(max_difference(near, far), 1e-5 * near.abs().max().item<double>());
}

/// A key's bias moves all scores of a query alike, so its gradient is 0 but for rounding.
bool is_bias_of_keys(const std::string& name) {
  return name.ends_with("attention.wk.bias");
}

void expect_close_in_bf16(const DecoderOptions& options) {
  DecoderReplica exact = make(options);
  DecoderReplica rounded = make(DecoderOptions(options).dtype(at::kBFloat16));
  const auto [tokens_BL, positions_L] = inputs(33);
  const auto want = exact.logits(tokens_BL, positions_L, causal(positions_L));
  const auto got = rounded.logits(tokens_BL, positions_L, causal(positions_L));
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  // bf16 has 8 bits; the bound is a few roundings of values near the largest logit.
  EXPECT_LT(max_difference(got, want), 0.03 * want.abs().max().item<double>());
  got.to(at::kFloat).square().sum().backward();
  want.square().sum().backward();
  const auto& got_gradients = rounded.parameters();
  const auto& want_gradients = exact.parameters();
  for (std::size_t i = 0; i < got_gradients.size(); ++i) {
    const auto& want_gradient = want_gradients[i].grad();
    EXPECT_EQ(got_gradients[i].grad().scalar_type(), at::kFloat);
    if (is_bias_of_keys(exact.names()[i])) continue;
    EXPECT_LT(max_difference(got_gradients[i].grad(), want_gradient),
              0.1 * want_gradient.abs().max().item<double>())
        << exact.names()[i];
  }
}

TEST(Decoder, Bf16ActivationsStayCloseAndGradientsAreFp32) {
  expect_close_in_bf16(small());
  expect_close_in_bf16(small_gpt2());
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
  for (DecoderOptions options : {small(), small().feed_forward(FeedForwardKind::SwiGlu),
                                 small_gpt2(), small_gpt2().feed_forward(FeedForwardKind::SwiGlu),
                                 small().qkv_bias(true).qk_norm(true).head_dim(12)}) {
    options.loss_chunk_tokens(8);
    DecoderReplica fused = make(options);
    DecoderReplica separate = make(DecoderOptions(options).fused(false));
    const auto [tokens_BL, positions_L] = inputs(33);
    for (DecoderReplica* model : {&fused, &separate}) {
      const Attends attends(causal(positions_L));
      model->loss(tokens_BL, positions_L, tokens_BL, attends).backward();
    }
    const auto got = separate.parameters();
    const auto want = fused.parameters();
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (is_bias_of_keys(fused.names()[i])) continue;
      EXPECT_LE(max_difference(got[i].grad(), want[i].grad()),
                1e-5 * want[i].grad().abs().max().item<double>())
          << fused.names()[i];
    }
  }
}

TEST(Decoder, ARankWithoutTokensTakesPart) {
  for (const DecoderOptions& options :
       {small(), small().dtype(at::kBFloat16), small_gpt2(), small_gpt2().dtype(at::kBFloat16),
        small_gpt2().fused(false), small().qk_norm(true),
        small().qk_norm(true).dtype(at::kBFloat16)}) {
    DecoderReplica model = make(options);
    const auto none_L = at::empty({0}, at::kLong);
    bool attended = false;
    const auto logits_BLV =
        model.logits(none_L.unsqueeze(0), none_L,
                     [&](const at::Tensor& q_BLHD, const at::Tensor&, const at::Tensor&) {
                       attended = true;
                       return q_BLHD;
                     });
    EXPECT_TRUE(attended);
    EXPECT_EQ(logits_BLV.sizes(), (at::IntArrayRef{1, 0, kVocabulary}));
    logits_BLV.sum().backward();
  }
}

}  // namespace
}  // namespace armillary::model
