// verify_folded.h: the proof of verify.h for worlds of ranks that are alike, made once for each
// class of ranks (fold.h).
//
// The verdict is that of verify(): representatives are run on symbols together, and a message comes
// from a representative in the numbers that the receiver sees. The proof holds for all ranks whose
// programs are those of their class. armillary/plan/fold.md has the argument.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "armillary/plan/strategies/strategy.h"
#include "armillary/plan/verify/verify.h"

namespace armillary::plan {

/// A verdict about a world, and how it was found.
struct FoldedProof {
  std::vector<Diagnostic> diagnostics;  ///< As of verify(): empty if the plan is exact.
  int classes = 0;                      ///< Classes of ranks; as many as ranks if none are alike.
  int compared = 0;      ///< Ranks whose programs were compared with their class; all, or a sample.
  std::int64_t ops = 0;  ///< The ops of all ranks.
  int steps = 0;         ///< Rows of the printed grid.
};

/// Proves a plan by the classes of `fold`, which is of its problem. All programs are compared with
/// their class; if one differs, the proof is verify(plan).
FoldedProof verify_folded(const Plan& plan, const Fold& fold, int limit = 20);

/// The program of a rank as it will run: lowered, for example. Called by several threads at once.
using ProgramOf = std::function<RankProgram(Pass pass, Rank rank)>;

/// Ops of the largest pass that is proved rank by rank: some gigabytes.
inline constexpr std::int64_t kMostOps = std::int64_t{1} << 24;

/// Proves passes of a large world without making all of its programs: those of the representatives,
/// and of a sample of other ranks, evenly spread, which are compared with their class. The sample
/// is all ranks if they have few ops. A pass of which no two ranks are alike is proved as by
/// verify(), if its programs have at most `most_ops` ops. Passes are also checked to find the saved
/// tiles of the first pass, on the ranks whose programs were made for both. One proof for each
/// pass. Cost: O(ops of the representatives and of the sample, or of all ranks); memory likewise.
/// @throws InvalidArgument if no two ranks are alike and there are more ops, with the reason and
/// what could be done; PlanError if the program of a rank is not that of its class.
std::vector<FoldedProof> verify_folded(const Planner& planner, const std::vector<Pass>& passes,
                                       const ProgramOf& program, int limit = 20,
                                       std::int64_t most_ops = kMostOps);

}  // namespace armillary::plan
