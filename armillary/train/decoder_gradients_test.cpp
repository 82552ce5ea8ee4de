// decoder_gradients_test.cpp: loss and all gradients of model/decoder.h, on one rank and on
// several, against the model of model/testing/plain_decoder.h; rotary positions against angles
// computed by hand.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/model/decoder.h"
#include "armillary/model/registry.h"
#include "armillary/model/testing/decoder_replica.h"
#include "armillary/model/testing/plain_decoder.h"
#include "armillary/train/packed_text.h"

namespace armillary::train {
namespace {

constexpr std::int64_t kDecoderTokens = 30;
constexpr const char* kThreeDocuments = "documents:11,1,18";

struct DecoderCase {
  const char* name;
  int world = 1;
  const char* strategy = "ring";
  const char* layout = "contiguous";
  bool tied = false;
  std::int64_t kv_heads = 2;
  std::int64_t hidden_dim = 48;
  double theta = 10000;
  const char* model = "gpt";
  std::int64_t words = kVocabSize;
  bool qkv_bias = false;
  bool qk_norm = false;
  std::int64_t head_dim = 0;
};

model::DecoderOptions sizes_of(const DecoderCase& example) {
  model::ModelOptions sizes;
  sizes.name = example.model;
  sizes.dim = 32;
  sizes.n_layers = 2;
  sizes.n_heads = 4;
  sizes.n_kv_heads = example.kv_heads;
  sizes.hidden_dim = example.hidden_dim;
  sizes.rope_theta = example.theta;
  sizes.norm_eps = 0.01;
  sizes.enable_weight_tying = example.tied;
  sizes.multiple_of = 10;
  sizes.vocab_size = example.words;
  sizes.max_seq_len = kDecoderTokens + 3;
  sizes.qkv_bias = example.qkv_bias;
  sizes.qk_norm = example.qk_norm;
  sizes.head_dim = example.head_dim;
  return model::decoder_options(sizes);
}

/// Makes the weights so large that attention is far from uniform, and norms other than 1.
model::DecoderReplica sharp_decoder(const DecoderCase& example) {
  model::DecoderReplica model(sizes_of(example).loss_chunk_tokens(7), 3);
  const at::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(4);
  for (const at::Tensor& parameter : model.parameters()) {
    if (parameter.dim() == 2) parameter.mul_(8);
    if (parameter.dim() == 1) parameter.uniform_(0.5, 2, generator);
  }
  return model;
}

at::Tensor decoder_tokens() {
  return (at::arange(kDecoderTokens, at::kLong) * 37 + 11).remainder(kVocabSize);
}

at::Tensor decoder_labels() {
  at::Tensor labels_L = (at::arange(kDecoderTokens, at::kLong) * 53 + 5).remainder(kVocabSize);
  for (const std::int64_t ignored : {10, 11, 29}) labels_L[ignored].fill_(model::kIgnoredLabel);
  return labels_L;
}

struct DecoderResults {
  double loss = 0;
  std::vector<at::Tensor> gradients;  ///< In the order of the parameters.
};

/// Loss and gradients summed over the ranks, each of which has its tokens and a replica.
DecoderResults on_ranks(const DecoderCase& example) {
  const plan::Mask mask = plan::parse_mask(kThreeDocuments, {kDecoderTokens, kDecoderTokens});
  const plan::Layout layout = plan::parse_layout(example.layout);
  std::vector<DecoderResults> of_rank(static_cast<std::size_t>(example.world));
  comm::run_ranks(example.world, [&](comm::Communicator& comm) {
    model::DecoderReplica model = sharp_decoder(example);
    const auto shards = plan::shards(layout, mask, example.world);
    const at::Tensor positions_L =
        at::tensor(plan::positions(shards.q[static_cast<std::size_t>(comm.rank())]), at::kLong);
    const auto mine = [&](const at::Tensor& x_L) {
      return x_L.index_select(0, positions_L).unsqueeze(0);
    };
    const model::Attend attend = [&](const at::Tensor& q, const at::Tensor& k,
                                     const at::Tensor& v) {
      return attention::sequence_parallel_attention(
          q, k, v, comm, {.mask = mask, .layout = layout, .strategy = example.strategy});
    };
    const at::Tensor loss =
        model.loss(mine(decoder_tokens()), positions_L, mine(decoder_labels()), attend);
    loss.backward();
    DecoderResults& results = of_rank[static_cast<std::size_t>(comm.rank())];
    results.loss = loss.item<double>();
    comm::all_reduce_sum(comm, std::span(&results.loss, 1));
    for (const at::Tensor& parameter : model.parameters()) {
      const at::Tensor& gradient = parameter.grad();
      comm::all_reduce_sum(
          comm, std::span(gradient.data_ptr<float>(), static_cast<std::size_t>(gradient.numel())));
      results.gradients.push_back(gradient.clone());
    }
  });
  return of_rank.back();
}

TEST(DecoderGradients, AreThoseOfPlainOpsOnAnyRanks) {
  for (const DecoderCase& example : {
           DecoderCase{.name = "1 rank"},
           DecoderCase{.name = "1 rank, tied, MQA", .tied = true, .kv_heads = 1},
           DecoderCase{.name = "1 rank, defaults, other theta",
           .kv_heads = 0,
           .hidden_dim = 0,
           .theta = 50},
           DecoderCase{.name = "2 ranks", .world = 2, .layout = "zigzag"},
           DecoderCase{.name = "3 ranks", .world = 3, .layout = "zigzag", .tied = true},
           DecoderCase{.name = "4 ranks", .world = 4, .strategy = "usp:u=2", .layout = "balanced"},
           DecoderCase{.name = "gpt2, 1 rank, defaults, tied",
           .tied = true,
           .kv_heads = 0,
           .hidden_dim = 0,
           .model = "gpt2"},
           DecoderCase{.name = "gpt2, 2 ranks", .world = 2, .layout = "zigzag", .model = "gpt2"},
           DecoderCase{.name = "gpt2, 3 ranks, tied, 301 words",
           .world = 3,
           .layout = "zigzag",
           .tied = true,
           .model = "gpt2",
           .words = 301},
           DecoderCase{.name = "gpt, 2 ranks, 301 words", .world = 2, .words = 301},
           DecoderCase{.name = "llama, 1 rank, defaults", .hidden_dim = 0, .model = "llama"},
           DecoderCase{.name = "llama, 2 ranks, MQA, tied",
           .world = 2,
           .layout = "zigzag",
           .tied = true,
           .kv_heads = 1,
           .model = "llama"},
           DecoderCase{.name = "llama, 3 ranks", .world = 3, .theta = 50, .model = "llama"},
           DecoderCase{.name = "qwen2, 2 ranks",
           .world = 2,
           .layout = "zigzag",
           .model = "llama",
           .qkv_bias = true},
           DecoderCase{.name = "qwen3, 1 rank", .model = "llama", .qk_norm = true, .head_dim = 12},
           DecoderCase{.name = "qwen3, 3 ranks, MQA",
           .world = 3,
           .kv_heads = 1,
           .model = "llama",
           .qk_norm = true,
           .head_dim = 6},
           DecoderCase{.name = "both, 2 ranks",
           .world = 2,
           .model = "llama",
           .qkv_bias = true,
           .qk_norm = true},
           DecoderCase{.name = "llama, 4 ranks",
           .world = 4,
           .strategy = "usp:u=2",
           .layout = "balanced",
           .model = "llama"},
       }) {
    const model::DecoderReplica model = sharp_decoder(example);
    model::PlainDecoder plain(sizes_of(example), model);
    const at::Tensor documents_L =
        at::repeat_interleave(at::arange(3, at::kLong), at::tensor({11, 1, 18}, at::kLong));
    const at::Tensor loss =
        plain.loss(decoder_tokens(), decoder_labels(), model::visible_within(documents_L));
    loss.backward();
    const DecoderResults results = on_ranks(example);
    EXPECT_NEAR(results.loss, loss.item<double>(), 1e-5 * loss.item<double>()) << example.name;
    std::size_t i = 0;
    for (const std::string& name : model.names()) {
      const at::Tensor required = plain.parameters().at(name).grad();
      const double error =
          (results.gradients.at(i++).to(at::kDouble) - required).abs().max().item<double>();
      double largest = required.abs().max().item<double>();
      // A key's bias that does not rotate moves all scores of a query alike: its gradient is 0 but
      // for rounding.
      if (name.ends_with("wk.bias") && example.model == std::string("gpt2")) {
        const std::string weight = name.substr(0, name.size() - 4) + "weight";
        const double size = plain.parameters().at(weight).grad().abs().max().item<double>();
        EXPECT_LT(largest, 1e-12 * size) << example.name << ' ' << name;
        largest = size;
      }
      EXPECT_GT(largest, 0) << example.name << ' ' << name;
      // Gradients behind a LayerNorm are differences from their mean, and cancel more.
      const double bound = example.model == std::string("gpt2") ? 4e-5 : 1e-5;
      EXPECT_LE(error, bound * largest) << example.name << ' ' << name;
    }
  }
}

/// One head of 4 dims, base 100: at position p the first pair rotates by p, the second by p / 10.
TEST(DecoderRotaryPositions, AreThoseInTheWholeSequence) {
  model::ModelOptions sizes;
  sizes.dim = 4;
  sizes.n_layers = 1;
  sizes.n_heads = 1;
  sizes.rope_theta = 100;
  sizes.norm_eps = 1e-30;
  const model::DecoderReplica model(model::decoder_options(sizes).vocab_size(kVocabSize));
  {
    const at::NoGradGuard no_grad;
    for (const std::string& name : model.names()) {
      if (name.find(".attention.") != std::string::npos) model.parameter(name).copy_(at::eye(4));
    }
    // norm(x) is then sqrt(2) (1, 1, 0, 0).
    model.parameter("tok_embeddings.weight").copy_(at::tensor({3.0F, 3.0F, 0.0F, 0.0F}));
  }
  // Positions of rank 1 of 4 with 16 tokens in zigzag: pieces 1 and 6 of 8.
  const std::vector<std::int64_t> positions{2, 3, 12, 13, 0, 1000003};
  bool attended = false;
  const auto check = [&](const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                         const at::Tensor& v_BLGD) {
    attended = true;
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const auto p = static_cast<double>(positions[i]);
      const double rotated[] = {std::cos(p), std::cos(p / 10), std::sin(p), std::sin(p / 10)};
      const double at_rest[] = {1, 1, 0, 0};
      for (std::int64_t d = 0; d < 4; ++d) {
        const std::string where = fmt::format("position {} dim {}", positions[i], d);
        const auto value = [&](const at::Tensor& x_BLHD) {
          return x_BLHD[0][static_cast<std::int64_t>(i)][0][d].item<double>();
        };
        EXPECT_NEAR(value(q_BLHD), std::sqrt(2.0) * rotated[d], 1e-6) << "q " << where;
        EXPECT_NEAR(value(k_BLGD), std::sqrt(2.0) * rotated[d], 1e-6) << "k " << where;
        EXPECT_NEAR(value(v_BLGD), std::sqrt(2.0) * at_rest[d], 1e-6) << "v " << where;
      }
    }
    return q_BLHD;
  };
  const at::Tensor positions_L = at::tensor(positions, at::kLong);
  model.logits(at::zeros_like(positions_L).unsqueeze(0), positions_L, check);
  EXPECT_TRUE(attended);
}

/// Standard deviations of matrices of thousands of elements, within a few percent.
TEST(DecoderInitialize, DrawsTheDeviationsThatTheHeaderSays) {
  for (const char* kind : {"gpt", "gpt2"}) {
    for (const bool tied : {false, true}) {
      model::ModelOptions sizes;
      sizes.name = kind;
      sizes.dim = 64;
      sizes.n_layers = 8;  // residual: 0.02 / sqrt(16)
      sizes.enable_weight_tying = tied;
      const bool is_gpt2 = sizes.name == "gpt2";
      const model::DecoderReplica model(model::decoder_options(sizes), 5);
      for (const std::string& name : model.names()) {
        const std::string where = fmt::format("{} {} tied {}", kind, name, tied);
        const at::Tensor& values = model.parameter(name);
        if (values.dim() == 1) {
          const double constant = name.ends_with(".bias") ? 0 : 1;
          EXPECT_TRUE(at::equal(values, at::ones_like(values) * constant)) << where;
          continue;
        }
        double expected = 0.02;
        if (name.find(".wo.") != std::string::npos || name.find(".w2.") != std::string::npos) {
          expected = 0.005;
        }
        if (name == "tok_embeddings.weight" && !tied && !is_gpt2) expected = 1;
        EXPECT_NEAR(values.std().item<double>(), expected, 0.1 * expected) << where;
        EXPECT_NEAR(values.mean().item<double>(), 0, 0.1 * expected) << where;
      }
    }
  }
}

}  // namespace
}  // namespace armillary::train
