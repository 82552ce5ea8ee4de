// prove.h: the programs that run, and whether they are exact attention.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "armillary/plan/plan.h"
#include "armillary/plan/strategy.h"
#include "armillary/proof/digest.h"

namespace armillary::proof {

/// The passes of one attention. Forward is also that of a layer whose output is kept.
inline constexpr std::array kPasses{plan::Pass::Forward, plan::Pass::Backward, plan::Pass::Replay};

/// The program that a rank runs: the strategy's, lowered.
plan::RankProgram runnable(const plan::Planner& planner, plan::Pass pass, plan::Rank rank);

/// What is known of one pass.
struct PassProof {
  std::vector<Digest> programs;  ///< By rank.
  std::string wrong;             ///< Empty if exact, else the first broken rule and its place.
};

/// Makes the runnable programs of all ranks and proves them with plan::verify. Whether one pass
/// finds what another saves is for plan::finds_saved, who has both. Cost: that of `verify`.
PassProof prove(const plan::Planner& planner, plan::Pass pass);

/// The first thing that is wrong in any of the passes, `kPasses` in order; empty if all are exact
/// and backward and replay find what forward saves.
std::string first_wrong(const plan::Planner& planner,
                        const std::array<PassProof, kPasses.size()>& passes);

/// What ChangedPrograms changes; made early by who must be gone before it (proofs.cpp).
void make_current_change();

/// For tests: while it lives, `change` is applied to every runnable program, as a mistake in a
/// strategy or a pass would be. `proving` tells the program that is proved from the one that is
/// compiled to run. One at a time; programs that were made before stay as they are.
class ChangedPrograms {
 public:
  using Change = std::function<void(plan::Pass pass, bool proving, plan::RankProgram& program)>;
  explicit ChangedPrograms(Change change);
  ChangedPrograms(const ChangedPrograms&) = delete;
  ChangedPrograms& operator=(const ChangedPrograms&) = delete;
  ~ChangedPrograms();
};

}  // namespace armillary::proof
