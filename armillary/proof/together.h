// together.h: a group of ranks proves the programs that it will run, each proof made once.
//
//   own digests --all-gather--> the prover of each pass: all ranks' programs --verify--> verdict
//                               its digests = those gathered?    --all-gather--> go, or PlanError
//
// A rank never runs a program of which no proof is known: the prover makes the programs of all
// ranks itself, and the digests tell whether they are those that the ranks will run.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "armillary/comm/communicator.h"
#include "armillary/proof/proofs.h"
#include "armillary/proof/prove.h"

namespace armillary::proof {

using Claims = std::array<Digest, kPasses.size()>;  ///< Digests of one rank's programs, by pass.

/// The programs of one rank, as it will run them.
struct RankPrograms {
  plan::Planner planner;
  ProgramSource source;  ///< The source of the programs.
  Digest key;            ///< Digest of problem and strategy.
  Claims programs;
  bool finds_saved = false;  ///< Whether backward and replay find the tiles that forward saves.
  std::shared_ptr<Proofs> proofs;  ///< Those of planner and source.
};

/// Returns when the programs of all ranks of the group are proved. `folder` has recorded proofs
/// (proof_file.h); empty for none. Every pass is proved by one rank, the next by the rank after.
/// Collective over the group; waits are those of the communicator.
/// @throws PlanError, on all ranks, if a plan is not exact or a program is not the one that was
/// proved; InvalidArgument, on all ranks, if a recorded proof cannot be used; CommError as the
/// communicator does.
void prove_together(comm::Communicator& comm, const RankPrograms& own, const std::string& folder);

/// Has the worker begin this rank's share of the proofs of the problem of `key`, for a run that
/// will come. Proofs that are recorded in `folder` are not made. It sends nothing.
void prove_ahead(const comm::Communicator& comm, const Digest& key, Proofs& proofs,
                 const std::string& folder);

}  // namespace armillary::proof
