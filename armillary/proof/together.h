// together.h: a group of ranks proves what it will run, each proof made once.
//
//   own digests --all-gather--> the prover of each pass: all ranks' programs --verify--> verdict
//                               its digests = those gathered?    --all-gather--> go, or PlanError
#pragma once

#include <array>
#include <string>

#include "armillary/comm/communicator.h"
#include "armillary/proof/prove.h"

namespace armillary::proof {

/// The programs of one rank, as it will run them.
struct RankPrograms {
  plan::Planner planner;
  Digest key;                                   ///< Of problem and strategy.
  std::array<Digest, kPasses.size()> programs;  ///< By pass.
  bool finds_saved = false;                     ///< Backward and replay find what forward saves.
};

/// Whether prove_together has proved these programs in this group. The same on all ranks.
/// @throws PlanError if it has proved others for this problem and strategy.
bool is_proved(comm::Communicator& comm, const RankPrograms& own);

/// Returns if the programs of all ranks of the group are proved: at once if they were before.
/// `folder` has recorded proofs (proof_file.h); empty for none. Every pass is proved by one rank,
/// in turn. Collective; waits are the communicator's.
/// @throws on all ranks PlanError if a plan is not exact or a program is not the one that was
/// proved, InvalidArgument if a recorded proof cannot be used; CommError as the communicator.
void prove_together(comm::Communicator& comm, const RankPrograms& own, const std::string& folder);

/// Begins this rank's share of the proofs of a problem that will be run, beside what it does now;
/// none that is recorded in `folder`. Ranks call it with the same problem and strategy, or not at
/// all.
void prove_ahead(comm::Communicator& comm, const plan::Problem& problem,
                 const plan::Strategy& strategy, const std::string& folder = "");

}  // namespace armillary::proof
