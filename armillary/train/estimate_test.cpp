// estimate_test.cpp: the estimate of a run against closed forms and against advise: traffic,
// memory, flops, and the texts of both. Memory against that of a run: estimate_memory_test.cpp.
#include "armillary/train/estimate.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/model/decoder_cost.h"
#include "armillary/model/registry.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/tune/advise.h"
#include "armillary/proof/prove.h"
#include "armillary/train/packed_text.h"
#include "armillary/train/testing/picture_file.h"
#include "armillary/train/whole_sequences.h"

namespace armillary::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Recipe recipe_of(std::int64_t world, const std::string& strategy, const std::string& mask) {
  Recipe recipe;
  recipe.model.dim = 64;
  recipe.model.n_layers = 3;
  recipe.model.n_heads = 4;
  recipe.model.n_kv_heads = 2;
  recipe.training.seq_len = 48;
  recipe.parallelism.context_parallel_degree = world;
  recipe.parallelism.strategy = strategy;
  recipe.parallelism.layout = "contiguous";
  recipe.parallelism.mask = mask;
  return recipe;
}

const PackedText& text() {
  static const PackedText packed({std::string(100, 'a'), std::string(30, 'b')},
                                 {.seq_len = 48, .seed = 0});
  return packed;
}

TEST(Estimate, RingTrafficIsTheClosedForm) {
  const Recipe recipe = recipe_of(4, "ring", "full");
  const Estimate result = estimate(recipe, text());
  // (P-1) chunks of K and V, each [S/P, kv_heads, head_dim] in fp32, per layer.
  const std::int64_t forward = std::int64_t{3} * 3 * 2 * (48 / 4) * 2 * 16 * 4;
  EXPECT_EQ(result.forward.sent_bytes_per_rank, std::vector<std::int64_t>(4, forward));
  EXPECT_EQ(result.visible_pairs, 48 * 48);
  EXPECT_GT(result.backward.sent_bytes_per_rank[0], forward);
  EXPECT_EQ(result.gradient_sent_bytes, 4 * result.cost.parameters * 6 / 4);
  EXPECT_EQ(result.memory.optimizer, 8 * result.cost.parameters / 4);  // ZeRO-1
  EXPECT_GT(result.memory.attention, 0);
  EXPECT_EQ(result.memory.checkpoint, 0);
  Recipe saving = recipe;
  saving.checkpoint.enable = true;
  const std::int64_t saved = 12 * result.cost.parameters / 4;
  EXPECT_EQ(estimate(saving, text()).memory.checkpoint, saved);
  EXPECT_EQ(estimate(saving, text()).memory.total(),
            result.memory.total() + static_cast<double>(saved));
}

// State of two layers is on the device, unless backward has freed as much.
TEST(Estimate, StateOnTheHostIsARowOfItsOwn) {
  Recipe recipe = recipe_of(2, "ring", "full");
  const Estimate device = estimate(recipe, text());
  recipe.optimizer.state_device = "host";
  const Estimate host = estimate(recipe, text());
  EXPECT_EQ(host.memory.host, device.memory.optimizer);
  EXPECT_EQ(device.memory.host, 0);
  EXPECT_EQ(host.memory.optimizer, 0);
  const double freed = host.memory.activations + host.memory.transient + host.memory.gathered;
  const cost::ModelCost& cost = host.cost;
  const auto layer = static_cast<double>(cost.layer_parameters) / 3;
  const double two = layer + std::max({layer, static_cast<double>(cost.first_parameters),
                                       static_cast<double>(cost.last_parameters)});
  EXPECT_NEAR(host.memory.buffers, std::max(0.0, 8 * two / 2 - freed), 1);
  EXPECT_NEAR(host.memory.total(),
              device.memory.total() - device.memory.optimizer + host.memory.buffers, 1);
  EXPECT_THAT(describe(recipe, host), HasSubstr("\n  on the host: AdamW "));
  EXPECT_EQ(to_json(recipe, host)["memory_bytes"]["on_the_host"], device.memory.optimizer);
}

// At stage 3 ranks gather the masters of bf16: these stay on the device.
TEST(Estimate, MastersThatAreGatheredDoNotGoToTheHost) {
  Recipe recipe = recipe_of(2, "ring", "full");
  recipe.training.mixed_precision_param = "bfloat16";
  recipe.optimizer.state_device = "host";
  for (const int zero : {2, 3}) {
    recipe.parallelism.zero = zero;
    const Estimate result = estimate(recipe, text());
    const auto share = static_cast<double>(result.cost.parameters) / 2;
    EXPECT_EQ(result.memory.host, (zero == 3 ? 8 : 12) * share);
    EXPECT_EQ(result.memory.parameters, 4 * share);  // Masters, or bf16 on both ranks.
    const bool moves_masters = zero < 3;
    EXPECT_EQ(describe(recipe, result).find("and masters") != std::string::npos, moves_masters);
  }
}

TEST(Estimate, OneRankSendsNothing) {
  const Estimate result = estimate(recipe_of(1, "ring", "documents"), text());
  EXPECT_EQ(result.forward.sent_bytes_per_rank, std::vector<std::int64_t>{0});
  EXPECT_EQ(result.backward.sent_bytes_per_rank, std::vector<std::int64_t>{0});
  EXPECT_EQ(result.gradient_sent_bytes, 0);
}

// Two sequences, one after the other: a sum and a gather of a step, or of each sequence. At stage 3
// what is used twice in a row is gathered once: the last unit, and between passes the first. The
// last layer stays over the last unit, the first layer from one pass to the next, a tied table from
// the first unit to the last.
TEST(Estimate, ParametersTravelAsOftenAsTheStageSays) {
  for (const bool tied : {false, true}) {
    Recipe recipe = recipe_of(4, "ring", "full");
    recipe.training.global_batch_size = 2;
    recipe.model.enable_weight_tying = tied;
    const cost::ModelCost cost = model_cost(recipe);
    const std::int64_t again = 2 * cost.last_parameters + cost.first_parameters +
                               (2 + 1) * cost.layer_parameters / cost.attention.layers;
    const std::int64_t values[] = {2 * cost.parameters, 2 * cost.parameters, 3 * cost.parameters,
                                   6 * cost.parameters - again};
    for (int zero = 0; zero <= 3; ++zero) {
      recipe.parallelism.zero = zero;
      EXPECT_EQ(estimate(recipe, text()).gradient_sent_bytes, 4 * values[zero] * 3 / 4) << zero;
    }
  }
}

// Shares of copies are summed over them; gradients that ranks along tp share, over those.
TEST(Estimate, GradientsTravelOverAllAxes) {
  Recipe recipe = recipe_of(2, "ring", "full");
  const std::int64_t parameters = model_cost(recipe).parameters;
  recipe.training.global_batch_size = 2;
  recipe.parallelism.data_parallel_replicate_degree = 2;
  // A sum and a gather over two ranks, and of half of the gradients a sum in two rounds.
  const std::int64_t half = 4 * (2 * parameters / 2 + 2 * (parameters / 2) / 2);
  // Shares are whole rows.
  EXPECT_NEAR(estimate(recipe, text()).gradient_sent_bytes, half, 1e-3 * half);
  Recipe tensor = recipe_of(1, "ring", "full");
  tensor.parallelism.tensor_parallel_degree = 2;
  const std::int64_t norms = (2 * 3 + 1) * std::int64_t{64};
  EXPECT_EQ(estimate(tensor, text()).gradient_sent_bytes, 4 * norms);
}

// 10 or 8 times the tokens of a layer, and 4 times for embedding and head.
TEST(Estimate, TensorParallelismSendsTheTokensOfTheFormula) {
  Recipe recipe = recipe_of(1, "ring", "full");
  EXPECT_EQ(estimate(recipe, text()).tensor_sent_bytes, 0);
  recipe.parallelism.tensor_parallel_degree = 2;
  constexpr std::int64_t kHalfOfTokens = std::int64_t{48} * 64 * 4 / 2;
  EXPECT_EQ(estimate(recipe, text()).tensor_sent_bytes, (3 * 10 + 4) * kHalfOfTokens);
  recipe.parallelism.tensor_parallel_keep_inputs = true;
  EXPECT_EQ(estimate(recipe, text()).tensor_sent_bytes, (3 * 8 + 4) * kHalfOfTokens);
}

// A dit has no words that ranks divide: its 2 layers alone send 15 tokens.
TEST(Estimate, PicturesTravelInLayersAlone) {
  Recipe recipe = small_dit_recipe();
  recipe.parallelism.tensor_parallel_degree = 2;
  constexpr std::int64_t kHalfOfTokens = std::int64_t{15} * 24 * 4 / 2;
  EXPECT_EQ(estimate(recipe, WholeSequences(15)).tensor_sent_bytes, 2 * 10 * kHalfOfTokens);
}

// Cross-attention is a third branch of a layer.
TEST(Estimate, BranchesOfALayerTravelAlongTp) {
  Recipe recipe = small_cross_dit_recipe();
  recipe.parallelism.tensor_parallel_degree = 2;
  constexpr std::int64_t kHalfOfTokens = std::int64_t{15} * 24 * 4 / 2;
  EXPECT_EQ(estimate(recipe, WholeSequences(15)).tensor_sent_bytes, 2 * 15 * kHalfOfTokens);
  recipe.parallelism.tensor_parallel_keep_inputs = true;
  EXPECT_EQ(estimate(recipe, WholeSequences(15)).tensor_sent_bytes, 2 * 12 * kHalfOfTokens);
}

// A word more is in the inputs of 2 layers and of the head, whatever tokens a rank has.
TEST(Estimate, WordsOfCrossAttentionAreOnEveryRank) {
  for (const std::int64_t cp : {1, 3}) {
    Recipe recipe = small_cross_dit_recipe();
    recipe.activation_checkpoint.mode = "full";
    recipe.parallelism.context_parallel_degree = cp;
    const double five = estimate(recipe, WholeSequences(15)).memory.activations;
    recipe.model.text_tokens = 6;
    const double six = estimate(recipe, WholeSequences(15)).memory.activations;
    EXPECT_EQ(six - five, (2 + 1) * 24 * 4) << cp;
  }
}

// 4 pictures of 15 tokens on 3 ranks: in zigzag the second one has pieces 10 to 19 and 40 to 49, of
// all of them; in a row a rank has 20 tokens, of two; in stripes of one, some of each.
TEST(Estimate, WordsAreThoseOfAllPicturesOfARank) {
  const auto bytes_of_a_word = [](std::int64_t cp, const std::string& layout) {
    Recipe recipe = small_cross_dit_recipe();
    recipe.activation_checkpoint.mode = "full";
    recipe.training.global_batch_size = recipe.training.local_batch_size = 4;
    recipe.parallelism.context_parallel_degree = cp;
    recipe.parallelism.layout = layout;
    const double five = estimate(recipe, WholeSequences(15)).memory.activations;
    recipe.model.text_tokens = 6;
    return estimate(recipe, WholeSequences(15)).memory.activations - five;
  };
  constexpr std::int64_t kWordOfPicture = std::int64_t{2 + 1} * 24 * 4;
  EXPECT_EQ(bytes_of_a_word(1, "zigzag"), 4 * kWordOfPicture);
  EXPECT_EQ(bytes_of_a_word(3, "zigzag"), 4 * kWordOfPicture);
  EXPECT_EQ(bytes_of_a_word(3, "contiguous"), 2 * kWordOfPicture);
  EXPECT_EQ(bytes_of_a_word(3, "striped"), 4 * kWordOfPicture);
}

// Modulations are products of each sequence, whatever its tokens.
TEST(Estimate, CountsTheModulationsOfEveryPicture) {
  Recipe recipe = small_dit_recipe();
  const auto flops = [&] {
    return to_json(recipe, estimate(recipe, WholeSequences(15))).at("flops_per_step").get<double>();
  };
  const double one = flops();
  recipe.training.global_batch_size = 3;
  EXPECT_DOUBLE_EQ(flops(), 3 * one);
}

TEST(Estimate, CountsAllSequencesOfTheStep) {
  Recipe recipe = recipe_of(4, "ring", "full");
  recipe.training.global_batch_size = 2;
  const Estimate two = estimate(recipe, text());
  recipe.training.global_batch_size = 1;
  const Estimate one = estimate(recipe, text());
  EXPECT_EQ(two.visible_pairs, 2 * one.visible_pairs);
  EXPECT_EQ(two.forward.sent_bytes_per_rank[3], 2 * one.forward.sent_bytes_per_rank[3]);
  EXPECT_EQ(two.forward.steps, one.forward.steps);
}

// Two ranks with four sequences: each owns two whole ones, and sends nothing of them.
TEST(Estimate, RanksThatOwnWholeSequencesSendNothing) {
  for (const char* layout : {"contiguous", "zigzag"}) {
    Recipe recipe = recipe_of(2, "ring", "causal");
    recipe.parallelism.layout = layout;
    recipe.training.global_batch_size = 8;
    const Estimate one = estimate(recipe, text());
    recipe.training.local_batch_size = 4;
    const Estimate four = estimate(recipe, text());
    EXPECT_GT(one.forward.sent_bytes_per_rank[0] + one.forward.sent_bytes_per_rank[1], 0);
    EXPECT_EQ(four.forward.sent_bytes_per_rank, std::vector<std::int64_t>(2, 0));
    EXPECT_EQ(four.backward.sent_bytes_per_rank, std::vector<std::int64_t>(2, 0));
    EXPECT_EQ(four.visible_pairs, one.visible_pairs);
    EXPECT_EQ(four.gradient_sent_bytes, one.gradient_sent_bytes);
  }
}

TEST(Estimate, PassesOfSeveralSequencesHoldMoreAndGatherLess) {
  Recipe recipe = recipe_of(2, "ring", "causal");
  recipe.training.global_batch_size = 4;
  recipe.parallelism.data_parallel_shard_degree = 2;
  recipe.parallelism.zero = 3;
  const Estimate one = estimate(recipe, text());
  recipe.training.local_batch_size = 2;
  const Estimate two = estimate(recipe, text());
  EXPECT_EQ(two.memory.activations, 2 * one.memory.activations);
  EXPECT_EQ(two.memory.parameters, one.memory.parameters);
  // A pass less: its sum, a gather of each unit, and another one of each layer but the first one,
  // which is there from the pass before, and the last one, which stays over the loss.
  const cost::ModelCost& cost = one.cost;
  EXPECT_EQ(one.gradient_sent_bytes - two.gradient_sent_bytes,
            4 * (2 * cost.parameters + cost.layer_parameters / 3) * 3 / 4);
  EXPECT_EQ(two.visible_pairs, one.visible_pairs);
  recipe.training.local_batch_size = 4;
  EXPECT_THAT([&] { estimate(recipe, text()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("a multiple of 8 is required")));
}

const PolicyCost& cost_of(const Estimate& estimate, cost::Recompute policy) {
  return estimate.policies.at(static_cast<std::size_t>(policy));
}

TEST(Estimate, PoliciesCostWhatTheyDoAndSendAgain) {
  for (const char* strategy : {"ring", "ulysses", "usp:u=2"}) {
    Recipe recipe = recipe_of(4, strategy, "full");
    recipe.model.n_kv_heads = 4;
    const Estimate result = estimate(recipe, text());
    const auto& none = cost_of(result, cost::Recompute::None);
    const auto& full = cost_of(result, cost::Recompute::Full);
    const auto& output = cost_of(result, cost::Recompute::AttentionOutput);
    EXPECT_EQ(none.more_flops, 0);
    EXPECT_EQ(none.more_sent.sent_bytes_per_rank, std::vector<std::int64_t>(4, 0));
    // Attention forward: 2 products of D = 16 for each of 4 heads in 3 layers.
    EXPECT_DOUBLE_EQ(full.more_flops - output.more_flops, 2.0 * 2 * 16 * 4 * 3 * 48 * 48);
    const std::int64_t matrices = result.cost.matmul_parameters - kVocabSize * recipe.model.dim;
    EXPECT_DOUBLE_EQ(output.more_flops, 2.0 * 48 * static_cast<double>(matrices));
    EXPECT_EQ(full.more_sent.sent_bytes_per_rank, result.forward.sent_bytes_per_rank);
    const std::int64_t sent_bytes = output.more_sent.sent_bytes_per_rank[0];
    if (std::string(strategy) == "ring") {
      EXPECT_EQ(sent_bytes, 0);
    } else if (std::string(strategy) == "ulysses") {
      EXPECT_EQ(sent_bytes, result.forward.sent_bytes_per_rank[0]);
    } else {
      EXPECT_GT(sent_bytes, 0);
      EXPECT_LT(sent_bytes, result.forward.sent_bytes_per_rank[0]);
    }
    EXPECT_EQ(result.memory.activations + result.memory.transient, none.activation_bytes);
    // AttentionOutput keeps 12 tokens x 3 layers x (4 heads of 16 and their log-sum-exps) in fp32
    // more than Full, and recomputes that much less of one layer, which counts if backward holds
    // most.
    const std::int64_t difference = output.activation_bytes - full.activation_bytes;
    EXPECT_GE(difference, std::int64_t{2} * 12 * (4 * 16 + 4) * 4);
    EXPECT_LE(difference, std::int64_t{3} * 12 * (4 * 16 + 4) * 4);
    recipe.activation_checkpoint.mode = "full";
    const cost::StepMemory memory = estimate(recipe, text()).memory;
    EXPECT_EQ(memory.activations + memory.transient, full.activation_bytes);
  }
}

/// The cost of a recipe's model on devices that multiply bf16, as `advise` takes it.
cost::ModelCost bf16_cost(const Recipe& recipe) {
  model::DecoderOptions decoder = model::decoder_options(recipe.model);
  decoder.dtype(at::kBFloat16)
      .native_bf16(true)
      .loss_chunk_tokens(recipe.training.loss_chunk_tokens);
  return model::decoder_cost(decoder);
}

/// Every policy of every model on every world: kept bytes by hand, then both programs.
TEST(Estimate, AdviseHasTheSameBytes) {
  constexpr std::int64_t kSeq = 8192;
  const PackedText packed({std::string(kSeq, 'a')}, {.seq_len = kSeq, .seed = 0});
  for (const char* model : {"gpt", "llama"}) {
    for (const int world : {1, 2, 4}) {
      Recipe recipe = recipe_of(world, "ring", "causal");
      recipe.model.name = model;
      recipe.training.seq_len = kSeq;
      recipe.training.loss_chunk_tokens = 64;
      recipe.training.mixed_precision_param = "bfloat16";
      const cost::ModelCost cost = bf16_cost(recipe);
      const tune::Advice advice = tune::advise({.model = model,
                                                .step = {.model = cost, .seq = kSeq},
                                                .cluster = sim::load_cluster("c6"),
                                                .devices = world,
                                                .mask = [](std::int64_t n) {
                                                  return plan::parse_mask("causal", {n, n});
                                                }});
      std::size_t compared = 0;
      for (const tune::Advised& advised : advice.meshes) {
        if (advised.parallelism.mesh.cp != world || advised.parallelism.zero != 0) continue;
        SCOPED_TRACE(fmt::format("{} on {}", model, to_string(advised)));
        recipe.parallelism.strategy = to_string(advised.attention.strategy);
        recipe.parallelism.layout = to_string(advised.attention.layout);
        const cost::Recompute policy = advised.parallelism.recompute;
        recipe.activation_checkpoint.mode =
            cost::recompute_names()[static_cast<std::size_t>(policy)];
        const Estimate dry_run = estimate(recipe, cost, packed);
        const auto& stage = advised.memory;
        EXPECT_EQ(stage.activations, dry_run.memory.activations);
        EXPECT_EQ(stage.transient, dry_run.memory.transient);
        EXPECT_EQ(advised.memory.attention, dry_run.memory.attention);
        if (policy != cost::Recompute::None) {
          // Y + 1 inputs of 64 elements; out, and log-sum-exps of 4 heads in fp32.
          const std::int64_t output = policy == cost::Recompute::Full ? 0 : 2 * 64 + 4 * 4;
          EXPECT_EQ(stage.activations, kSeq / world * (3 * (128 + output) + 128));
        }
        ++compared;
      }
      EXPECT_EQ(compared, cost::recompute_names().size());
    }
  }
}

TEST(Estimate, WhatTheStrategyCannotDoIsRefused) {
  EXPECT_THAT([] { estimate(recipe_of(8, "ulysses", "causal"), text()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("ulysses")));
}

TEST(Estimate, FlopsAreSixPerParameterAndTwelvePerPair) {
  const cost::ModelCost cost = model_cost(recipe_of(1, "ring", "full"));
  EXPECT_DOUBLE_EQ(cost.flops(10, 0), 60 * static_cast<double>(cost.matmul_parameters));
  EXPECT_DOUBLE_EQ(cost.flops(0, 7), 12.0 * 3 * 4 * 16 * 7);
}

// A model counts of itself what sim counts of its shape; norms are beside.
TEST(Estimate, AModelHasTheMatricesOfItsShape) {
  Recipe recipe = recipe_of(1, "ring", "full");
  recipe.model.name = "llama";
  for (const std::int64_t head_dim : {0, 10, 40}) {
    recipe.model.head_dim = head_dim;
    const cost::ModelCost cost = model_cost(recipe);
    const model::DecoderOptions decoder =
        model::decoder_options(recipe.model).vocab_size(kVocabSize);
    const auto number = [](std::int64_t value) { return static_cast<int>(value); };
    const cost::ModelCost shape =
        cost_of(cost::ModelShape{.layers = number(decoder.n_layers()),
                                 .hidden = number(decoder.dim()),
                                 .heads = number(decoder.n_heads()),
                                 .kv_heads = number(decoder.n_kv_heads()),
                                 .head_dim = number(model::head_dim_of(decoder)),
                                 .ffn = number(decoder.hidden_dim()),
                                 .vocab = number(decoder.vocab_size())});
    EXPECT_EQ(cost.matmul_parameters, shape.matmul_parameters);
    EXPECT_EQ(cost.layer_matmul_parameters, shape.layer_matmul_parameters);
    EXPECT_EQ(cost.layer_parameters - shape.layer_parameters,
              2 * decoder.n_layers() * decoder.dim());
    EXPECT_DOUBLE_EQ(cost.flops(100, 5050), shape.flops(100, 5050));
    EXPECT_EQ(cost.logits, shape.logits);
  }
}

/// A larger vocabulary is a longer embedding and output matrix, and more logits.
TEST(Estimate, TheVocabularyIsTheRecipes) {
  Recipe recipe = recipe_of(2, "ring", "full");
  const Estimate bytes = estimate(recipe, text());
  recipe.model.vocab_size = 1000;
  const Estimate more = estimate(recipe, text());
  EXPECT_EQ(more.cost.parameters - bytes.cost.parameters, 2 * (1000 - kVocabSize) * 64);
  EXPECT_EQ(more.cost.matmul_parameters - bytes.cost.matmul_parameters, (1000 - kVocabSize) * 64);
  EXPECT_EQ(more.cost.logits, 1000);
  EXPECT_GT(more.memory.transient, bytes.memory.transient);
}

TEST(Estimate, IsWrittenForReadersAndPrograms) {
  const Recipe recipe = recipe_of(4, "ring", "documents");
  const Estimate result = estimate(recipe, text());
  EXPECT_THAT(describe(recipe, result),
              HasSubstr(std::to_string(result.cost.parameters) + " parameters"));
  const nlohmann::json json = to_json(recipe, result);
  EXPECT_EQ(json.at("parameters"), result.cost.parameters);
  EXPECT_EQ(json.at("world"), 4);
  EXPECT_EQ(json.at("wire"), recipe.parallelism.transfer_dtype);
  EXPECT_EQ(json.at("forward").at("sent_bytes_per_rank").size(), 4U);
  EXPECT_EQ(json.at("memory_bytes").at("total"), result.memory.total());
  EXPECT_THAT(describe(recipe, result), HasSubstr("* none "));
  EXPECT_THAT(describe(recipe, result), HasSubstr("  attention_output "));
  EXPECT_EQ(json.at("activation_checkpoint").at("policies").size(), cost::recompute_names().size());
  EXPECT_EQ(json.at("activation_checkpoint").at("policies").at(1).at("mode"), "full");
}

/// Contiguous causal ring on 4 ranks: block b of K, V is sent on by every rank from b to 2.
TEST(Estimate, TheBusiestRankIsToldAndTheStepsOfThatWithMost) {
  Recipe recipe = recipe_of(4, "ring", "causal");
  recipe.training.global_batch_size = 2;
  const Estimate result = estimate(recipe, text());
  const std::int64_t block = std::int64_t{2} * (48 / 4) * 2 * 16 * 4;
  const std::int64_t all = std::int64_t{2} * 3 * block;  // 2 sequences, 3 layers
  EXPECT_EQ(result.forward.sent_bytes_per_rank,
            (std::vector<std::int64_t>{all, 2 * all, 3 * all, 0}));
  EXPECT_EQ(result.forward.steps, 4);
  EXPECT_EQ(result.visible_pairs, 2 * 48 * 49 / 2);
  const std::string told = fmt::format("forward   {:.2f} MiB in 4 steps a layer",
                                       static_cast<double>(3 * all) / (1 << 20));
  EXPECT_THAT(describe(recipe, result), HasSubstr(told));
  EXPECT_THAT(describe(recipe, result), HasSubstr("96 tokens, 2352 visible pairs a head"));
  const nlohmann::json json = to_json(recipe, result);
  EXPECT_EQ(json.at("tokens_per_step"), 96);
  // A layer: wq, wo 64 x 64, wk, wv 32 x 64, w1, w2 256 x 64; and the output, 257 x 64.
  const double matrices = 3 * (2 * 64 * 64 + 2 * 32 * 64 + 2 * 256 * 64) + 257 * 64;
  EXPECT_DOUBLE_EQ(json.at("flops_per_step"), 6 * matrices * 96 + 12.0 * 3 * 4 * 16 * 2352);
}

/// Documents of known lengths in one sequence: only pairs within a document are visible.
TEST(Estimate, PairsOfDocumentsAreTheirTriangles) {
  const PackedText packed({std::string(47, 'a'), std::string(47, 'b')}, {.seq_len = 72, .seed = 0});
  Recipe recipe = recipe_of(2, "ring", "documents");
  recipe.training.seq_len = 72;
  EXPECT_EQ(estimate(recipe, packed).visible_pairs, 48 * 49 / 2 + 24 * 25 / 2);
}

/// Slot bytes of the rank that needs most in one pass.
std::int64_t slots_of(const Recipe& recipe, plan::Pass pass) {
  const plan::Mask mask = plan::parse_mask(recipe.parallelism.mask, {48, 48});
  const plan::Planner planner(attention_problem(recipe, mask),
                              plan::parse_strategy(recipe.parallelism.strategy));
  std::int64_t most = 0;
  for (plan::Rank rank = 0; rank < 4; ++rank) {
    const plan::RankProgram program = proof::runnable(planner, pass, rank);
    most =
        std::max(most, plan::traffic(planner.problem(), planner.blocks(), program).peak_slot_bytes);
  }
  return most;
}

TEST(Estimate, SlotsAreThoseOfThePassThatNeedsMore) {
  Recipe recipe = recipe_of(4, "ring", "full");
  EXPECT_LT(slots_of(recipe, plan::Pass::Forward), slots_of(recipe, plan::Pass::Backward));
  EXPECT_EQ(estimate(recipe, text()).memory.attention, slots_of(recipe, plan::Pass::Backward));
  recipe = recipe_of(4, "grid:rk=2,rq=2,u=1", "documents:10,14,24");
  recipe.model.n_kv_heads = 1;
  EXPECT_GT(slots_of(recipe, plan::Pass::Forward), slots_of(recipe, plan::Pass::Backward));
  EXPECT_EQ(estimate(recipe, text()).memory.attention, slots_of(recipe, plan::Pass::Forward));
}

/// One sequence is a single document, the other has many small ones that need little; either order.
TEST(Estimate, SlotsAndStepsAreThoseOfTheSequenceThatNeedsMost) {
  std::vector<std::string> documents(17, "ab");
  documents[0] = std::string(47, 'a');
  documents.emplace_back("z");
  Recipe recipe = recipe_of(4, "ring", "documents");
  recipe.training.global_batch_size = 2;
  int count[2] = {};
  for (std::int64_t seed = 0; seed < 500; ++seed) {
    const PackedText packed(documents, {.seq_len = 48, .seed = seed});
    const std::size_t first = packed.at(0).documents.size();
    const std::size_t second = packed.at(1).documents.size();
    if (std::min(first, second) > 1 || ++count[first > 1 ? 1 : 0] > 1) continue;
    const Estimate result = estimate(recipe, packed);
    EXPECT_EQ(result.forward.steps, 4) << first << " documents, then " << second;
    recipe.parallelism.mask = "causal";  // the mask of a single document
    const Estimate most = estimate(recipe, packed);
    recipe.parallelism.mask = "documents";
    EXPECT_EQ(result.memory.attention, most.memory.attention)
        << first << " documents, then " << second;
  }
  EXPECT_GT(count[0], 0);
  EXPECT_GT(count[1], 0);
}

TEST(Estimate, ParametersThatStayAfterForwardAreGathered) {
  Recipe recipe = recipe_of(1, "ring", "full");
  recipe.training.global_batch_size = 2;
  recipe.parallelism.data_parallel_shard_degree = 2;
  recipe.parallelism.zero = 3;
  const Estimate resharded = estimate(recipe, text());
  recipe.parallelism.reshard_after_forward = false;
  const Estimate whole = estimate(recipe, text());
  EXPECT_GT(whole.memory.gathered, resharded.memory.gathered);
  EXPECT_GT(whole.memory.total(), resharded.memory.total());
  // In one pass each layer but the last, and the first unit, are gathered once more.
  const cost::ModelCost& cost = whole.cost;
  const std::int64_t layers = cost.attention.layers;
  EXPECT_EQ(resharded.gradient_sent_bytes - whole.gradient_sent_bytes,
            4 * (cost.layer_parameters / layers * (layers - 1) + cost.first_parameters) / 2);
}

TEST(Estimate, DtypesAreTheRecipes) {
  Recipe recipe = recipe_of(4, "attention2d:rows=2", "full");
  const Estimate wide = estimate(recipe, text());
  recipe.training.mixed_precision_param = "bfloat16";
  const std::int64_t ring = estimate(recipe, text()).forward.sent_bytes_per_rank[0];
  recipe.parallelism.transfer_dtype = "input";
  const std::int64_t narrow = estimate(recipe, text()).forward.sent_bytes_per_rank[0];
  EXPECT_LT(ring, wide.forward.sent_bytes_per_rank[0]);
  EXPECT_LT(narrow, ring) << "partial outputs travel in bf16 too";
  recipe.parallelism.strategy = "ring";  // only K and V travel: (P - 1) chunks in bf16
  EXPECT_EQ(estimate(recipe, text()).forward.sent_bytes_per_rank[0], 3 * 3 * 2 * 12 * 2 * 16 * 2);
}

}  // namespace
}  // namespace armillary::train
