// model_step.cpp: a step of a paper's model by the terms of predict/cost/step.h. The seconds of
// attention come from outside, since only they need a simulation.
#include "armillary/lab/validate/model_step.h"

namespace armillary::validate {

cost::ModelCost gpt_cost(int layers, int heads, int head_dim) {
  const int hidden = heads * head_dim;
  return cost::cost_of({.layers = layers,
                        .hidden = hidden,
                        .heads = heads,
                        .kv_heads = heads,
                        .head_dim = head_dim,
                        .ffn = 4 * hidden,
                        .vocab = kVocabularyOfGpt2,
                        .gated = false});
}

double model_step_seconds(const cost::ModelCost& model, const plan::Problem& problem,
                          const cost::AttentionTime& attention, int zero,
                          const Constants& constants) {
  return cost::step_time({.model = model, .seq = problem.mask.q_len(), .batch = problem.batch},
                         {.mesh = {.cp = problem.world}, .zero = zero, .microbatch = 0},
                         cluster(constants), attention, constants.step)
      .total();
}

}  // namespace armillary::validate
