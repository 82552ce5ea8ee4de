// prove.h: the programs that run, and the proof that they compute exact attention.
//
//   planner --program(pass, rank)--> lower --> runnable program of a rank
//           the same for all ranks ----------> verify --> PassProof: digests, and the first broken
//           rule
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "armillary/plan/plan.h"
#include "armillary/plan/strategy.h"
#include "armillary/proof/digest.h"

namespace armillary::proof {

/// The passes that are proved for one attention. A layer that is recomputed runs replay in place of
/// a second forward.
inline constexpr std::array kPasses{plan::Pass::Forward, plan::Pass::Backward, plan::Pass::Replay};

/// The program that a rank runs: that of the strategy, lowered by all passes of
/// plan/passes/lower.h.
plan::RankProgram runnable(const plan::Planner& planner, plan::Pass pass, plan::Rank rank);

/// The proof of one pass, or the reason why there is none.
struct PassProof {
  std::vector<Digest> programs;  ///< By rank.
  /// Empty if the programs are exact attention, else the first broken rule and its place.
  std::string wrong;
};

/// Makes the runnable programs of all ranks and proves them with plan::verify. It sees one pass
/// only: that backward and replay find the tiles which forward saves is checked by
/// plan::finds_saved. Cost: that of `verify`; programs are made on all cores.
PassProof prove(const plan::Planner& planner, plan::Pass pass);

/// The first error of the passes, in the order of `kPasses`; empty if all are exact, and backward
/// and replay find the tiles that forward saves.
std::string first_wrong(const plan::Planner& planner,
                        const std::array<PassProof, kPasses.size()>& passes);

/// Makes the static object that ChangedPrograms sets, for callers that must be destroyed before it
/// (proofs.cpp).
void make_current_change();

/// For tests: while it lives, `change` is applied to every runnable program when it is made, as if
/// a strategy or a lowering pass were wrong. `proving` is true for programs that are made to be
/// proved, false for those that are made to run. There may be one such object at a time.
class ChangedPrograms {
 public:
  using Change = std::function<void(plan::Pass pass, bool proving, plan::RankProgram& program)>;
  explicit ChangedPrograms(Change change);
  ChangedPrograms(const ChangedPrograms&) = delete;
  ChangedPrograms& operator=(const ChangedPrograms&) = delete;
  ~ChangedPrograms();
};

}  // namespace armillary::proof
