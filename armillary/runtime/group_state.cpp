#include "armillary/runtime/group_state.h"

#include <algorithm>
#include <utility>

namespace armillary::runtime {

std::shared_ptr<KnownProblem> KnownProblems::find(const plan::Problem& problem,
                                                  const std::string& strategy_text) {
  const auto* const known = problems_.find([&](const std::shared_ptr<KnownProblem>& one) {
    return std::ranges::count(one->strategy_texts, strategy_text) != 0 && one->problem == problem;
  });
  return known == nullptr ? nullptr : *known;
}

std::shared_ptr<KnownProblem> KnownProblems::add(KnownProblem problem) {
  // Ranks may ask for one strategy by several texts, and its proof is the same.
  const auto* const known = problems_.find([&](const std::shared_ptr<KnownProblem>& one) {
    return one->strategy && one->strategy == problem.strategy && one->problem == problem.problem;
  });
  if (known == nullptr) return problems_.add(std::make_shared<KnownProblem>(std::move(problem)));
  (*known)->strategy_texts.push_back(problem.strategy_texts.front());
  return *known;
}

}  // namespace armillary::runtime
