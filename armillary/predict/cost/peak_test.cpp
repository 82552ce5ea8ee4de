// peak_test.cpp: a small model whose moments are counted by hand: policies, shares along tp, units
// that are gathered, sums under way.
#include "armillary/predict/cost/peak.h"

#include <gtest/gtest.h>

namespace armillary::cost {
namespace {

/// Three layers with bytes that are told apart: a layer keeps 100 a token, its input is 10.
ModelCost small() {
  ModelCost cost;
  cost.layer_parameters = 3000;
  cost.first_parameters = 500;
  cost.last_parameters = 70;
  cost.attention.layers = 3;
  cost.bytes = {.layer = 100, .input = 10, .output = 12, .last = 10, .again = 10, .once = 1};
  cost.loss_chunk_tokens = 4;
  return cost;
}

TEST(StepPeak, IsTheBackwardOfTheLastLayerIfThatHoldsMost) {
  ModelCost cost = small();
  cost.bytes.loss = {{.whole = 5, .logits = 20}};
  cost.bytes.backward = {{.token = 30, .weights = 8}, {.token = -20, .weights = 64}};
  const StepPeak peak = step_peak(cost, {.tokens = 16});
  EXPECT_EQ(peak.activations, 16 * (3 * 100 + 10));
  EXPECT_EQ(peak.transient, 16 * (30 + 1) + 8);
  EXPECT_EQ(peak.gathered, 0);
}

// Logits of as many tokens as a chunk has; a pass may have fewer.
TEST(StepPeak, IsTheLossIfThatHoldsMost) {
  ModelCost cost = small();
  cost.bytes.loss = {{.whole = 5, .logits = 3000, .chunk = 3, .weights = 40}};
  cost.bytes.backward = {{.token = 30}};
  EXPECT_EQ(step_peak(cost, {.tokens = 16}).transient, 16 * (5 + 1) + 4 * 3003 + 40);
  EXPECT_EQ(step_peak(cost, {.tokens = 2}).transient, 2 * (5 + 1) + 2 * 3003 + 40);
  // One of 2 ranks along tp has half of the words, and all tokens.
  const StepPeak half = step_peak(cost, {.tokens = 16, .tp = 2});
  EXPECT_EQ(half.transient, 16 * (5 + 1) + 4 * (1500 + 3) + 20);
  EXPECT_EQ(half.activations, 16 * (3 * 100 + 10) / 2);
}

TEST(StepPeak, RecomputationRestoresOneLayer) {
  ModelCost cost = small();
  cost.bytes.backward = {{.token = 30, .weights = 8, .waiting = 16}};
  const StepPeak full = step_peak(cost, {.policy = Recompute::Full, .tokens = 16});
  EXPECT_EQ(full.activations, 16 * (3 + 1) * 10);
  EXPECT_EQ(full.transient, 16 * (30 + 1 + 90 + 10) + 8 + 16);
  const StepPeak output = step_peak(cost, {.policy = Recompute::AttentionOutput, .tokens = 16});
  EXPECT_EQ(output.activations, 16 * (3 * (10 + 12) + 10));
  EXPECT_EQ(output.transient, full.transient - 16 * 12);
}

// 7 bytes more of a layer that keeps all, 2 with attention's output; of a rank, whatever tp is.
TEST(StepPeak, AttentionMayKeepMoreThanTheModelCounts) {
  ModelCost cost = small();
  cost.bytes.backward = {{.token = 30}};
  PassOnRank pass{.tokens = 16, .waiting_tokens = 8, .attention_layer = 7, .attention_kept = 7};
  const StepPeak none = step_peak(cost, pass);
  EXPECT_EQ(none.activations, 24 * 310 + (3 + 3.0 / 2) * 7);
  EXPECT_EQ(none.transient, 16 * (30 + 1));
  pass.policy = Recompute::AttentionOutput;
  pass.attention_kept = 2;
  const StepPeak output = step_peak(cost, pass);
  EXPECT_EQ(output.activations, 24 * (3 * (10 + 12) + 10) + (3 + 3.0 / 2) * 2);
  EXPECT_EQ(output.transient, 16 * (30 + 1 + 100 - 22 + 10) + 7 - 2);
  pass.tp = 2;
  EXPECT_EQ(step_peak(cost, pass).transient, 16 * ((30 + 100 - 22 + 10) / 2 + 1) + 7 - 2);
}

// Rows of a sequence that are no tokens: 6 bytes in each input, and 4 more in a layer, of two.
TEST(StepPeak, SequencesHoldMoreThanTheirTokens) {
  ModelCost cost = small();
  cost.bytes.backward = {{.token = 30}};
  cost.sequence_bytes = {.input = 6, .layer = 4};
  const StepPeak none = step_peak(cost, {.tokens = 16, .sequences = 2});
  EXPECT_EQ(none.activations, 16 * 310 + 2 * (3 * (6 + 4) + 6));
  EXPECT_EQ(none.transient, 16 * (30 + 1) + 2 * 6);
  const StepPeak half = step_peak(cost, {.tokens = 16, .sequences = 2, .tp = 2});
  EXPECT_EQ(half.activations, 16 * 310 / 2 + 2 * (3 * (6 + 4 / 2) + 6));
  const StepPeak full = step_peak(cost, {.policy = Recompute::Full, .tokens = 16, .sequences = 2});
  EXPECT_EQ(full.activations, 16 * (3 + 1) * 10 + 2 * (3 + 1) * 6);
  EXPECT_EQ(full.transient, 16 * (30 + 1 + 90 + 10) + 2 * 6 + 2 * (6 + 4));
}

TEST(StepPeak, WhatRanksAlongTpGatherIsWholeOnEach) {
  ModelCost cost = small();
  cost.bytes.along_tp = 7;
  cost.bytes.backward = {{.token = 30, .along_tp = 9}};
  EXPECT_EQ(step_peak(cost, {.tokens = 16}).total(), 16 * (310 + 30 + 1));
  EXPECT_EQ(step_peak(cost, {.tokens = 16, .tp = 2}).total(),
            16 * (310 / 2 + 3 * 7 + 30 / 2 + 9 + 1));
  EXPECT_EQ(step_peak(cost, {.policy = Recompute::Full, .tokens = 16, .tp = 2}).total(),
            16 * ((4 * 10 + 90 + 10) / 2 + 7 + 30 / 2 + 9 + 1));
}

TEST(StepPeak, OtherPassesKeepAllLayers) {
  ModelCost cost = small();
  cost.bytes.backward = {{.token = 30}};
  EXPECT_EQ(step_peak(cost, {.tokens = 16, .waiting_tokens = 32}).activations, 48 * 310);
}

// Two layers' values, and gradients of the layer and of the unit after it.
TEST(StepPeak, UnitsAreWholeForAWhile) {
  ModelCost cost = small();
  cost.bytes.last_unit = {{.weights = 1}};
  cost.bytes.backward = {{.token = 30}};
  cost.bytes.first_unit = {{.weights = 2}};
  EXPECT_EQ(step_peak(cost, {.tokens = 100, .value = 2, .gradient = 4, .sum = 4}).gathered,
            2 * 2000 + 4 * (1000 + 70));
  // Few tokens: the middle layer, with gradients of two layers; a sum adds a rank's share.
  EXPECT_EQ(step_peak(cost, {.tokens = 1, .value = 2, .gradient = 4, .sum = 4}).gathered,
            2 * 2000 + 4 * 2000);
  EXPECT_EQ(step_peak(cost, {.tokens = 1, .value = 2, .gradient = 4, .sum = 6}).gathered,
            2 * 2000 + 4 * 1000 + 6 * 1000);
  // Gradients that are always whole, and rounded for a sum.
  EXPECT_EQ(step_peak(cost, {.tokens = 1, .sum = 3}).gathered, 3 * 1000);
  // The same beside the gather of the sum before: that of a layer, or with more tokens of the last
  // unit.
  EXPECT_EQ(step_peak(cost, {.tokens = 1, .sum = 3, .gathered_sum = 3}).gathered, 3 * 2000);
  EXPECT_EQ(step_peak(cost, {.tokens = 29, .sum = 3, .gathered_sum = 3}).gathered, 3 * (1000 + 70));
  // The gradients of a tied table are whole until the first unit has added its own.
  cost.tied = true;
  EXPECT_EQ(step_peak(cost, {.tokens = 100, .value = 2, .gradient = 4, .sum = 4}).gathered,
            2 * 2000 + 4 * (1000 + 70 + 500));
}

// The last layer stays over the head. In the loss of a second pass the first unit's gradients of
// the one before are whole.
TEST(StepPeak, ASumOfThePassBeforeIsUnderWay) {
  ModelCost cost = small();
  cost.bytes.loss = {{.weights = 100000}};
  PassOnRank pass{.tokens = 1, .value = 2, .gradient = 4};
  EXPECT_EQ(step_peak(cost, pass).gathered, 2 * (70 + 1000));
  pass.sum_before = 3;
  EXPECT_EQ(step_peak(cost, pass).gathered, 2 * (70 + 1000) + 3 * 500);
  // It has ended where backward begins.
  cost.bytes.loss.clear();
  cost.bytes.last_unit = {{.weights = 100000}};
  EXPECT_EQ(step_peak(cost, pass).gathered, 2 * (70 + 1000) + 4 * 70);
  cost.tied = true;
  EXPECT_EQ(step_peak(cost, pass).gathered, 2 * (70 + 1000 + 500) + 4 * (70 + 500));
}

TEST(StepPeak, TheFirstLayerStaysForAPassThatFollows) {
  ModelCost cost = small();
  cost.bytes.first_unit = {{.weights = 100000}};
  PassOnRank pass{.tokens = 1, .value = 2, .gradient = 4, .sum = 5};
  EXPECT_EQ(step_peak(cost, pass).gathered, 2 * 500 + 4 * 500 + 5 * 1000);
  // The last pass has the larger sum, or the one before has more values.
  pass.sum_before = 2;
  EXPECT_EQ(step_peak(cost, pass).gathered, 2 * 500 + 4 * 500 + 5 * 1000);
  pass.sum_before = 4;
  EXPECT_EQ(step_peak(cost, pass).gathered, 2 * (500 + 1000) + 4 * 500 + 4 * 1000);
}

TEST(StepPeak, ValuesMayStayAfterForward) {
  ModelCost cost = small();
  cost.bytes.loss = {{.weights = 100000}};
  EXPECT_EQ(step_peak(cost, {.tokens = 1, .value = 2, .keeps_values = true}).gathered,
            2 * (500 + 3000 + 70));
  // Those of the last layer are gone in the backward of the one before.
  cost.bytes.loss = {};
  cost.bytes.last_unit = {};
  cost.bytes.first_unit = {};
  cost.bytes.backward = {{.token = 30}};
  EXPECT_EQ(step_peak(cost, {.tokens = 1, .value = 2, .keeps_values = true}).gathered,
            2 * (500 + 3000));
}

TEST(StepPeak, PublishedShapesHaveNoUnits) {
  const ModelCost cost = cost_of(
      {.layers = 2, .hidden = 8, .heads = 2, .kv_heads = 2, .head_dim = 4, .ffn = 16, .vocab = 32});
  EXPECT_EQ(step_peak(cost, {.tokens = 4, .value = 2, .gradient = 4, .sum = 4}).gathered, 0);
}

}  // namespace
}  // namespace armillary::cost
