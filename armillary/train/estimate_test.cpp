#include "armillary/train/estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "armillary/core/error.h"

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
}

}  // namespace
}  // namespace armillary::train
