// model_step.h: training steps of the models of the papers on ranks that share one sequence.
// Internal to validate.
#pragma once

#include "armillary/lab/validate/constants.h"
#include "armillary/plan/problem.h"
#include "armillary/predict/cost/step.h"

namespace armillary::validate {

inline constexpr int kVocabularyOfGpt2 = 50257;

/// A GPT with a feed-forward layer of four times the hidden size and the vocabulary of GPT-2, which
/// the papers do not state.
cost::ModelCost gpt_cost(int layers, int heads, int head_dim);

/// Seconds of a training step of one problem's sequences, in one pass, whose attention takes so
/// long in a layer, with ZeRO over all ranks.
double model_step_seconds(const cost::ModelCost& model, const plan::Problem& problem,
                          const cost::AttentionTime& attention, int zero,
                          const Constants& constants);

}  // namespace armillary::validate
