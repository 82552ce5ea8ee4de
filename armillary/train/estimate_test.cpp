#include "armillary/train/estimate.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/train/counting_allocator.h"
#include "armillary/train/trainer.h"

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
  EXPECT_EQ(result.gradient_sent_bytes, 4 * result.size.parameters * 6 / 4);
  EXPECT_EQ(result.memory.optimizer, 8 * result.size.parameters);
  EXPECT_GT(result.memory.attention, 0);
}

TEST(Estimate, OneRankSendsNothing) {
  const Estimate result = estimate(recipe_of(1, "ring", "documents"), text());
  EXPECT_EQ(result.forward.sent_bytes_per_rank, std::vector<std::int64_t>{0});
  EXPECT_EQ(result.backward.sent_bytes_per_rank, std::vector<std::int64_t>{0});
  EXPECT_EQ(result.gradient_sent_bytes, 0);
}

TEST(Estimate, CountsAllSequencesOfTheStep) {
  Recipe recipe = recipe_of(4, "ring", "full");
  recipe.training.local_batch_size = 2;
  const Estimate two = estimate(recipe, text());
  recipe.training.local_batch_size = 1;
  const Estimate one = estimate(recipe, text());
  EXPECT_EQ(two.visible_pairs, 2 * one.visible_pairs);
  EXPECT_EQ(two.forward.sent_bytes_per_rank[3], 2 * one.forward.sent_bytes_per_rank[3]);
  EXPECT_EQ(two.forward.steps, one.forward.steps);
}

const PolicyCost& cost_of(const Estimate& estimate, Recompute policy) {
  return estimate.policies.at(static_cast<std::size_t>(policy));
}

TEST(Estimate, PoliciesCostWhatTheyDoAndSendAgain) {
  for (const char* strategy : {"ring", "ulysses", "usp:u=2"}) {
    Recipe recipe = recipe_of(4, strategy, "full");
    recipe.model.n_kv_heads = 4;
    const Estimate result = estimate(recipe, text());
    const auto& none = cost_of(result, Recompute::None);
    const auto& full = cost_of(result, Recompute::Full);
    const auto& output = cost_of(result, Recompute::AttentionOutput);
    EXPECT_EQ(none.more_flops, 0);
    EXPECT_EQ(none.more_sent.sent_bytes_per_rank, std::vector<std::int64_t>(4, 0));
    // Attention forward: 2 products of D = 16 for each of 4 heads in 3 layers.
    EXPECT_DOUBLE_EQ(full.more_flops - output.more_flops, 2.0 * 2 * 16 * 4 * 3 * 48 * 48);
    const std::int64_t matrices = result.size.matmul_parameters - kVocabSize * recipe.model.dim;
    EXPECT_DOUBLE_EQ(output.more_flops, 2.0 * 48 * static_cast<double>(matrices));
    EXPECT_EQ(full.more_sent.sent_bytes_per_rank, result.forward.sent_bytes_per_rank);
    const std::int64_t sent = output.more_sent.sent_bytes_per_rank[0];
    if (std::string(strategy) == "ring") {
      EXPECT_EQ(sent, 0);
    } else if (std::string(strategy) == "ulysses") {
      EXPECT_EQ(sent, result.forward.sent_bytes_per_rank[0]);
    } else {
      EXPECT_GT(sent, 0);
      EXPECT_LT(sent, result.forward.sent_bytes_per_rank[0]);
    }
    EXPECT_EQ(result.memory.activations, none.activation_bytes);
    recipe.activation_checkpoint.mode = "full";
    EXPECT_EQ(estimate(recipe, text()).memory.activations, full.activation_bytes);
  }
}

/// The estimate against what the tensors of a training run hold at most.
TEST(Estimate, MemoryIsThatOfARunWithinAQuarter) {
  const PackedText packed({std::string(5000, 'a')}, {.seq_len = 2048, .seed = 0});
  CountingAllocator& memory = CountingAllocator::instance();
  for (const char* dtype : {"float32", "bfloat16"}) {
    for (const std::string& mode : recompute_names()) {
      Recipe recipe = recipe_of(2, "ring", "window:left=64,right=0");
      recipe.model.dim = 96;
      recipe.model.n_layers = 6;
      recipe.training.seq_len = 2048;
      recipe.training.steps = 2;
      recipe.training.mixed_precision_param = dtype;
      recipe.training.loss_chunk_tokens = 128;
      recipe.activation_checkpoint.mode = mode;
      const auto expected = static_cast<double>(2 * estimate(recipe, packed).memory.total());
      const auto measured = static_cast<double>(
          memory.peak_bytes([&] { train(recipe, packed, [](const StepMetrics&) {}); }));
      fmt::print("{:<8} {:<16} estimate {:.1f} MiB, run {:.1f} MiB, ratio {:.2f}\n", dtype, mode,
                 expected / (1 << 20), measured / (1 << 20), measured / expected);
      EXPECT_LT(measured, 1.25 * expected) << dtype << ' ' << mode;
      EXPECT_GT(measured, 0.8 * expected) << dtype << ' ' << mode;
    }
  }
}

TEST(Estimate, WhatTheStrategyCannotDoIsRefused) {
  EXPECT_THAT([] { estimate(recipe_of(8, "ulysses", "causal"), text()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("ulysses")));
}

TEST(Estimate, FlopsAreSixPerParameterAndTwelvePerPair) {
  const Recipe::Model model = recipe_of(1, "ring", "full").model;
  const auto matrices = static_cast<double>(gpt_size(model).matmul_parameters);
  EXPECT_DOUBLE_EQ(model_flops(model, 10, 0), 60 * matrices);
  EXPECT_DOUBLE_EQ(model_flops(model, 0, 7), 12.0 * 3 * 4 * 16 * 7);
}

TEST(Estimate, IsWrittenForReadersAndPrograms) {
  const Recipe recipe = recipe_of(4, "ring", "documents");
  const Estimate result = estimate(recipe, text());
  EXPECT_THAT(describe(recipe, result),
              HasSubstr(std::to_string(result.size.parameters) + " parameters"));
  const nlohmann::json json = to_json(recipe, result);
  EXPECT_EQ(json.at("parameters"), result.size.parameters);
  EXPECT_EQ(json.at("world"), 4);
  EXPECT_EQ(json.at("forward").at("sent_bytes_per_rank").size(), 4U);
  EXPECT_EQ(json.at("memory_bytes").at("total"), result.memory.total());
  EXPECT_THAT(describe(recipe, result), HasSubstr("* none "));
  EXPECT_THAT(describe(recipe, result), HasSubstr("  attention_output "));
  EXPECT_EQ(json.at("activation_checkpoint").at("policies").size(), recompute_names().size());
  EXPECT_EQ(json.at("activation_checkpoint").at("policies").at(1).at("mode"), "full");
}

}  // namespace
}  // namespace armillary::train
