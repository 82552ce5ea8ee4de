// tensor_parallel_test.cpp: decoders whose tokens, matrices and words are cut over ranks along tp:
// loss and every gradient against one rank in fp64, elements on the wire, and the same bits where
// tp is 1.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/comm/mesh.h"
#include "armillary/plan/layout.h"
#include "armillary/plan/mask/mask.h"
#include "armillary/plan/runs.h"
#include "armillary/train/attend_over_ranks.h"
#include "armillary/train/tensor_parallel_over_ranks.h"
#include "armillary/train/testing/decoder_shards.h"

namespace armillary::train {
namespace {

using model::DecoderOptions;
using model::FeedForwardKind;
using model::TensorParallel;

constexpr std::int64_t kVocabulary = 257;  // a prime: no tp divides it
constexpr std::int64_t kDim = 48;
constexpr std::int64_t kTpLayers = 2;

DecoderOptions tp_options(std::int64_t heads, std::int64_t kv_heads) {
  return DecoderOptions()
      .vocab_size(kVocabulary)
      .dim(kDim)
      .n_layers(kTpLayers)
      .n_heads(heads)
      .n_kv_heads(kv_heads)
      .hidden_dim(50)
      .norm_eps(0.01)
      .dtype(at::kDouble)
      .loss_chunk_tokens(5);
}

/// Causal attention by positions, of whole sequences and any heads.
model::Attends causal_attends(const at::Tensor& positions_L) {
  const auto attend = [positions_L](const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                    const at::Tensor& v_BLGD) {
    const auto mask_LL = positions_L.unsqueeze(1).ge(positions_L.unsqueeze(0));
    return at::scaled_dot_product_attention(q_BLHD.transpose(1, 2), k_BLGD.transpose(1, 2),
                                            v_BLGD.transpose(1, 2), mask_LL, 0.0, false, {}, true)
        .transpose(1, 2);
  };
  const auto keep = [attend](const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                             const at::Tensor& v_BLGD) {
    return model::KeptOutput{attend(q_BLHD, k_BLGD, v_BLGD), attend};
  };
  return {attend, keep};
}

/// The tokens at these positions of a sequence, every seventh without a label.
model::ModelInputs inputs_at(const at::Tensor& positions_L, const model::Attends& attends,
                             std::shared_ptr<TensorParallel> tp) {
  const at::Tensor tokens_L = (positions_L * 37 + 11).remainder(kVocabulary);
  const at::Tensor labels_L =
      (positions_L * 53 + 5)
          .remainder(kVocabulary)
          .masked_fill(positions_L.remainder(7).eq(3), model::kIgnoredLabel);
  return {
      .batch = {{model::kTokens, tokens_L.unsqueeze(0)}, {model::kLabels, labels_L.unsqueeze(0)}},
      .positions_L = positions_L,
      .attends = attends,
      .tensor_parallel = std::move(tp)};
}

/// Sums over the ranks.
struct TpResults {
  double loss = 0;
  std::vector<at::Tensor> gradients;  ///< Whole, fp64, in the order of the parameters.
};

using ShardsOfRanks = std::vector<std::unique_ptr<DecoderShards>>;

TpResults sum_over_ranks(const ShardsOfRanks& shards, const std::vector<double>& losses) {
  TpResults results;
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    results.loss += losses[rank];
    shards[rank]->add_gradients_to(results.gradients);
  }
  return results;
}

/// Makes the tensor parallelism of a rank.
using MakeTp = std::function<std::shared_ptr<TensorParallel>(comm::Communicator&)>;

TpResults results_on(int ranks, const DecoderOptions& options, std::int64_t tokens,
                     double sharpness = 8, const MakeTp& make_tp = tensor_parallel_over_ranks) {
  ShardsOfRanks shards(static_cast<std::size_t>(ranks));
  std::vector<double> losses(shards.size());
  comm::run_ranks(ranks, [&](comm::Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    shards[rank] = std::make_unique<DecoderShards>(options, comm.rank(), ranks, sharpness);
    const at::Tensor positions_L = at::arange(tokens, at::kLong);
    const at::Tensor loss =
        shards[rank]->loss(inputs_at(positions_L, causal_attends(positions_L), make_tp(comm)));
    loss.backward();
    losses[rank] = loss.item<double>();
  });
  return sum_over_ranks(shards, losses);
}

std::shared_ptr<TensorParallel> no_tp(comm::Communicator& /*comm*/) {
  return nullptr;
}

/// The same model on one rank in fp64.
TpResults one_rank_results(DecoderOptions options, std::int64_t tokens, double sharpness = 8) {
  return results_on(1, options.dtype(at::kDouble), tokens, sharpness, no_tp);
}

void expect_results(const TpResults& results, const TpResults& required,
                    const DecoderOptions& options, double bound, const std::string& where) {
  EXPECT_NEAR(results.loss, required.loss, bound * required.loss) << where;
  const std::vector<model::Parameter> parameters = model::Decoder(options).parameters();
  // For the bias of keys that do not rotate: softmax does not see it, so its gradient is rounding.
  double largest_of_all = 0;
  for (const at::Tensor& gradient : required.gradients) {
    largest_of_all = std::max(largest_of_all, gradient.abs().max().item<double>());
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const double error =
        (results.gradients.at(i) - required.gradients.at(i)).abs().max().item<double>();
    double largest = required.gradients[i].abs().max().item<double>();
    EXPECT_GT(largest, 0) << where << ' ' << parameters[i].name;
    if (options.max_seq_len() > 0 && parameters[i].name.ends_with("wk.bias")) {
      largest = largest_of_all;
    }
    EXPECT_LE(error, bound * largest) << where << ' ' << parameters[i].name;
  }
}

/// Query heads that tp divides, and KV heads that it divides, or that divide it.
struct TpHeads {
  int tp;
  std::int64_t heads;
  std::int64_t kv_heads;
};
constexpr TpHeads kTpHeads[] = {{1, 4, 2}, {2, 4, 4}, {2, 4, 2}, {2, 4, 1}, {2, 6, 3}, {3, 6, 6},
                                {3, 6, 3}, {3, 6, 1}, {3, 4, 1}, {4, 4, 4}, {4, 4, 2}, {4, 4, 1}};

TEST(TensorParallel, LossAndEveryGradientAreThoseOfOneRank) {
  int count = 0;
  for (const auto& [tp, heads, kv_heads] : kTpHeads) {
    for (const FeedForwardKind kind : {FeedForwardKind::Gelu, FeedForwardKind::SwiGlu}) {
      for (const cost::Recompute recompute :
           {cost::Recompute::None, cost::Recompute::Full, cost::Recompute::AttentionOutput}) {
        ++count;
        const bool tied = count % 2 == 0;
        const bool fused = count % 5 != 0;
        const bool keep = count % 7 < 3;
        const DecoderOptions options = tp_options(heads, kv_heads)
                                           .feed_forward(kind)
                                           .recompute(recompute)
                                           .tied(tied)
                                           .fused(fused)
                                           .keep_gathered_inputs(keep);
        const std::string where = fmt::format(
            "tp {}, heads {}, KV heads {}, feed-forward {}, recompute {}, tied {}, fused {}, keep "
            "{}",
            tp, heads, kv_heads, static_cast<int>(kind), static_cast<int>(recompute), tied, fused,
            keep);
        expect_results(results_on(tp, options, 13), one_rank_results(options, 13), options, 1e-12,
                       where);
      }
    }
  }
}

TEST(TensorParallel, BiasesLayerNormAndLearnedPositionsAreThoseOfOneRank) {
  for (const auto& [tp, heads, kv_heads] : kTpHeads) {
    for (const bool fused : {false, true}) {
      for (const cost::Recompute recompute : {cost::Recompute::None, cost::Recompute::Full}) {
        const DecoderOptions options = tp_options(heads, kv_heads)
                                           .norm(model::NormKind::Layer)
                                           .bias(true)
                                           .max_seq_len(20)
                                           .tied(!fused)
                                           .fused(fused)
                                           .recompute(recompute);
        expect_results(results_on(tp, options, 13), one_rank_results(options, 13), options, 1e-12,
                       fmt::format("tp {}, heads {}, KV heads {}, fused {}, recompute {}", tp,
                                   heads, kv_heads, fused, static_cast<int>(recompute)));
      }
    }
  }
}

/// As in Qwen2 and Qwen3: the norms are whole, and each rank uses them for its heads.
TEST(TensorParallel, BiasesOfQkvAndNormsOfHeadsAreThoseOfOneRank) {
  for (const auto& [heads, kv_heads, ranks] :
       {std::tuple{4, 2, 2}, std::tuple{4, 2, 4}, std::tuple{6, 3, 3}}) {
    const DecoderOptions options =
        tp_options(heads, kv_heads).qkv_bias(true).qk_norm(true).head_dim(10);
    expect_results(results_on(ranks, options, 13), one_rank_results(options, 13), options, 1e-12,
                   fmt::format("{} heads on {} ranks", heads, ranks));
  }
}

TEST(TensorParallel, OtherDtypesAreCloseToFp64) {
  for (const auto& [tp, heads, kv_heads] : kTpHeads) {
    const DecoderOptions options = tp_options(heads, kv_heads).tied(kv_heads == 1);
    const std::string where = fmt::format("tp {}, heads {}, KV heads {}", tp, heads, kv_heads);
    expect_results(results_on(tp, DecoderOptions(options).dtype(at::kFloat), 13),
                   one_rank_results(options, 13), options, 2e-5, where + ", fp32");
    // 8 bits, and weights that leave attention near uniform: a few roundings of what is largest.
    expect_results(results_on(tp, DecoderOptions(options).dtype(at::kBFloat16), 13, 1),
                   one_rank_results(options, 13, 1), options, 0.2, where + ", bf16");
  }
}

TEST(TensorParallel, RanksMayHaveNoTokensOfTheirOwn) {
  for (const std::int64_t tokens : {2, 3}) {
    const DecoderOptions options = tp_options(4, 2).feed_forward(FeedForwardKind::SwiGlu);
    for (const bool keep : {false, true}) {
      expect_results(results_on(4, DecoderOptions(options).keep_gathered_inputs(keep), tokens),
                     one_rank_results(options, tokens), options, 1e-12,
                     fmt::format("{} tokens, keep {}", tokens, keep));
    }
  }
}

TEST(TensorParallel, OneRankHasTheBitsOfNone) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const DecoderOptions options = tp_options(4, 2).dtype(dtype);
    const TpResults results = results_on(1, options, 13);
    const TpResults required = results_on(1, options, 13, 8, no_tp);
    EXPECT_EQ(results.loss, required.loss);
    for (std::size_t i = 0; i < required.gradients.size(); ++i) {
      EXPECT_TRUE(at::equal(results.gradients.at(i), required.gradients[i])) << "parameter " << i;
    }
  }
}

/// Counts the elements that collectives gather or scatter, and those that they reduce everywhere.
class CountedTensorParallel : public TensorParallel {
 public:
  explicit CountedTensorParallel(std::shared_ptr<TensorParallel> inner)
      : TensorParallel(inner->index(), inner->ranks()), inner_(std::move(inner)) {}

  void all_gather(const at::Tensor& mine, const at::Tensor& all,
                  std::span<const std::int64_t> counts) override {
    tokens += all.numel();
    inner_->all_gather(mine, all, counts);
  }
  void reduce_scatter(const at::Tensor& all, const at::Tensor& mine,
                      std::span<const std::int64_t> counts) override {
    tokens += all.numel();
    inner_->reduce_scatter(all, mine, counts);
  }
  void all_reduce_sum(const at::Tensor& values) override {
    numbers += values.numel();
    inner_->all_reduce_sum(values);
  }
  void all_reduce_max(const at::Tensor& values) override {
    numbers += values.numel();
    inner_->all_reduce_max(values);
  }

  std::int64_t tokens = 0;
  std::int64_t numbers = 0;

 private:
  std::shared_ptr<TensorParallel> inner_;
};

// Per layer 10 or 8, more with recomputation; 2 for the embedding, and 2 for the head.
TEST(TensorParallel, ElementsOnTheWireAreThoseOfTheFormula) {
  constexpr std::int64_t kTokens = 13;
  for (const cost::Recompute recompute : {cost::Recompute::None, cost::Recompute::Full}) {
    for (const bool keep : {false, true}) {
      const std::int64_t of_a_layer =
          (keep ? 8 : 10) + (recompute == cost::Recompute::Full ? 4 : 0);
      for (const FeedForwardKind kind : {FeedForwardKind::Gelu, FeedForwardKind::SwiGlu}) {
        const DecoderOptions options =
            tp_options(4, 2).feed_forward(kind).recompute(recompute).keep_gathered_inputs(keep);
        std::vector<std::shared_ptr<CountedTensorParallel>> of_rank(2);
        results_on(2, options, kTokens, 8, [&](comm::Communicator& comm) {
          const auto tp = std::make_shared<CountedTensorParallel>(tensor_parallel_over_ranks(comm));
          of_rank[static_cast<std::size_t>(comm.rank())] = tp;
          return tp;
        });
        for (const auto& tp : of_rank) {
          EXPECT_EQ(tp->tokens, (of_a_layer * kTpLayers + 4) * kTokens * kDim)
              << "recompute " << static_cast<int>(recompute) << " keep " << keep;
          EXPECT_EQ(tp->numbers, 3 * kTokens);
        }
      }
    }
  }
}

/// Attention over cp, its heads and tokens over tp, on a mesh of 2 x 2.
TEST(TensorParallel, WorksBesideContextParallelism) {
  constexpr std::int64_t kTokens = 26;  // 13 for each rank along cp
  const plan::Mask mask = plan::causal_mask({kTokens, kTokens}, plan::Align::Start);
  const plan::Layout layout = plan::parse_layout("zigzag");
  for (const cost::Recompute recompute :
       {cost::Recompute::None, cost::Recompute::Full, cost::Recompute::AttentionOutput}) {
    const DecoderOptions options =
        tp_options(4, 1).feed_forward(FeedForwardKind::SwiGlu).recompute(recompute);
    ShardsOfRanks shards(4);
    std::vector<double> losses(4);
    comm::run_ranks(4, [&](comm::Communicator& comm) {
      const comm::Mesh mesh(comm, {.cp = 2, .tp = 2});
      comm::Communicator& cp = mesh.along(MeshAxis::Cp);
      comm::Communicator& tp = mesh.along(MeshAxis::Tp);
      const auto rank = static_cast<std::size_t>(comm.rank());
      shards[rank] = std::make_unique<DecoderShards>(options, tp.rank(), tp.world());
      const auto of_ranks = plan::shards(layout, mask, cp.world());
      const at::Tensor positions_L =
          at::tensor(plan::positions(of_ranks.q[static_cast<std::size_t>(cp.rank())]), at::kLong);
      const at::Tensor loss = shards[rank]->loss(
          inputs_at(positions_L, attend_over_ranks(cp, {.mask = mask, .layout = layout}),
                    tensor_parallel_over_ranks(tp)));
      loss.backward();
      losses[rank] = loss.item<double>();
    });
    expect_results(sum_over_ranks(shards, losses), one_rank_results(options, kTokens), options,
                   1e-11, fmt::format("recompute {}", static_cast<int>(recompute)));
  }
}

}  // namespace
}  // namespace armillary::train
