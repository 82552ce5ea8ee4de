#include "armillary/runtime/group_state.h"

#include <algorithm>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/runtime/rank.h"

namespace armillary::runtime {
namespace {

/// Tells the entry that was asked for by this text.
auto is_asked_by(const plan::Problem& problem, const std::string& strategy_text) {
  return [&](const std::shared_ptr<KnownProblem>& one) {
    return std::ranges::count(one->strategy_texts, strategy_text) != 0 && one->problem == problem;
  };
}

}  // namespace

bool is_proved(const KnownProblem& known, const CompiledAttention& programs) {
  if (!known.proved) return false;
  if (*known.proved == programs.proved.programs) return true;
  fail<PlanError>("attention: {} was proved with other programs than rank {} has now",
                  to_string(programs.proved.planner.strategy()), programs.forward->program.rank);
}

std::shared_ptr<KnownProblem> KnownProblems::find(const plan::Problem& problem,
                                                  const std::string& strategy_text) {
  const auto* const known = problems_.find(is_asked_by(problem, strategy_text));
  return known == nullptr ? nullptr : *known;
}

bool KnownProblems::has_proved(const plan::Problem& problem,
                               const std::string& strategy_text) const {
  const auto* const known = problems_.peek(is_asked_by(problem, strategy_text));
  return known != nullptr && (*known)->proved;
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

void prove_ahead(const comm::Communicator& comm, const plan::Problem& problem,
                 const plan::Strategy& strategy, const std::string& folder) {
  Rank& rank = Rank::of(comm);
  if (rank.group(comm).known.has_proved(problem, to_string(strategy))) return;
  const auto proofs = proofs_cached(problem, strategy, rank.device().kernel());
  proof::prove_ahead(comm, proof::digest_of(problem, strategy), *proofs, folder);
}

}  // namespace armillary::runtime
