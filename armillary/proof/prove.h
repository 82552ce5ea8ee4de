// prove.h: the programs that run, and the proof that they compute exact attention.
//
//   planner --source(pass, rank)--> runnable program of a rank
//           the same for all ranks --> verify --> PassProof: digests, and the first broken rule
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "armillary/plan/plan.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/proof/digest.h"

namespace armillary::proof {

/// The passes that are proved for one attention. A layer that is recomputed runs replay in place of
/// a second forward.
inline constexpr std::array kPasses{plan::Pass::Forward, plan::Pass::Backward, plan::Pass::Replay};

/// The program that a rank runs: that of the strategy, lowered by all passes of
/// plan/passes/lower.h.
plan::RankProgram runnable(const plan::Planner& planner, plan::Pass pass, plan::Rank rank);

/// A source of the programs that run, instead of `runnable`: its programs are proved like any
/// other. A pure function; called by many threads at once. Null stands for `runnable`.
using MakeProgram =
    std::function<plan::RankProgram(const plan::Planner&, plan::Pass pass, plan::Rank rank)>;
using ProgramSource = std::shared_ptr<const MakeProgram>;

/// The program that a rank runs if its programs come from `source`.
plan::RankProgram program_of(const ProgramSource& source, const plan::Planner& planner,
                             plan::Pass pass, plan::Rank rank);

/// The proof of one pass, or the reason why there is none.
struct PassProof {
  std::vector<Digest> programs;  ///< By rank.
  /// Empty if the programs are exact attention, else the first broken rule and its place.
  std::string wrong;
};

/// Makes the programs of all ranks and proves them with plan::verify. It sees one pass
/// only: that backward and replay find the tiles which forward saves is checked by
/// plan::finds_saved. Cost: that of `verify`; programs are made on all cores.
PassProof prove(const plan::Planner& planner, plan::Pass pass, const ProgramSource& source = {});

/// The first error of the passes, in the order of `kPasses`; empty if all are exact, and backward
/// and replay find the tiles that forward saves.
std::string first_wrong(const plan::Planner& planner,
                        const std::array<PassProof, kPasses.size()>& passes,
                        const ProgramSource& source = {});

}  // namespace armillary::proof
