#include "armillary/validate/model_step.h"

#include "armillary/sim/step.h"

namespace armillary::validate {

sim::ModelCost gpt_cost(int layers, int heads, int head_dim) {
  const int hidden = heads * head_dim;
  return sim::cost_of({.layers = layers,
                       .hidden = hidden,
                       .heads = heads,
                       .kv_heads = heads,
                       .head_dim = head_dim,
                       .ffn = 4 * hidden,
                       .vocab = kVocabularyOfGpt2,
                       .gated = false});
}

double model_step_seconds(const sim::ModelCost& model, const plan::Problem& problem,
                          double attention_s, int zero, const Constants& constants) {
  const sim::Step step{.model = model,
                       .seq = problem.mask.q_len(),
                       .batch = problem.batch,
                       .parallelism = {.sp = problem.world, .zero = zero},
                       .rates = constants.step};
  return sim::step_time(step, cluster(constants), attention_s).total();
}

}  // namespace armillary::validate
