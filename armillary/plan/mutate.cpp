// mutate.cpp: mutations of a plan are those of its programs (program/mutate.h), with the sizes and
// words of attention.
#include "armillary/plan/mutate.h"

namespace armillary::plan {

std::vector<Mutation> mutations(const Plan& plan) {
  const Measures measures = measures_of(plan.problem, plan.blocks);
  return mutations(World{measures, plan.ranks, plan.problem.world});
}

std::vector<Rank> changed_ranks(const Plan& plan, const Mutation& mutation) {
  return changed_ranks(plan.ranks, mutation);
}

void mutate(Plan& plan, const Mutation& mutation) {
  mutate(measures_of(plan.problem, plan.blocks), plan.ranks, mutation);
}

Plan apply(const Plan& plan, const Mutation& mutation) {
  Plan mutant = plan;
  mutate(mutant, mutation);
  return mutant;
}

std::string to_string(const Mutation& mutation) {
  return to_string(mutation, attention_words());
}

}  // namespace armillary::plan
