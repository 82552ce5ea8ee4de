// group_state.h: everything that one rank keeps of one group, and nothing that its groups share
// (rank.h).
//
//   Rank --group(comm)--> GroupState --> KnownProblems: strategy, programs, proof of each problem
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "armillary/core/recent.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/proof/together.h"
#include "armillary/runtime/program_cache.h"

namespace armillary::runtime {

/// One problem and strategy: how ranks compare them, and the programs that the group has proved for
/// them.
struct KnownProblem {
  plan::Problem problem;
  std::vector<std::string> strategy_texts;  ///< Names under which the strategy was asked for.
  std::optional<plan::Strategy> strategy;   ///< The tuner's for `auto`; none for a wrong text.
  /// Digest of problem and strategy; of the text alone if it names no strategy.
  proof::Digest key;
  std::string words;  ///< Problem and strategy as ranks compare them (attention/call_record.h).
  /// Gone if the process has forgotten them (program_cache.h), sooner than this group forgets that
  /// they were proved.
  std::weak_ptr<const CompiledAttention> programs = {};
  /// Digests of the programs of this rank that the group has proved.
  std::optional<proof::Claims> proved = {};
};

/// Whether these are the programs that the group has proved for the problem, on this rank. It sends
/// nothing. @throws PlanError if it has proved others.
bool is_proved(const KnownProblem& known, const CompiledAttention& programs);

/// The problems that a group attended to last: its proofs. A layer makes the same call in every
/// step, so almost every look-up finds its entry. Ranks of a group look them up in the same order,
/// so all of them remember, and have proved, the same ones; what other groups of the process have
/// proved counts for nothing here. Threads: that of the rank.
class KnownProblems {
 public:
  /// Null if there is none that was asked for by this text.
  std::shared_ptr<KnownProblem> find(const plan::Problem& problem,
                                     const std::string& strategy_text);

  /// Adds a problem. If it is known with the same strategy by other texts, that one gets this text
  /// too and is returned.
  std::shared_ptr<KnownProblem> add(KnownProblem problem);

  /// Whether a problem was proved that was asked for by this text. It is no look-up: one rank alone
  /// may ask.
  bool has_proved(const plan::Problem& problem, const std::string& strategy_text) const;

 private:
  Recent<std::shared_ptr<KnownProblem>> problems_{1024};
};

/// It dies with the rank's end of the group.
struct GroupState {
  KnownProblems known;
  /// Number of its ranks in the flight file of the rank; none until it is asked for.
  std::optional<std::uint8_t> recorded;
  /// Whether a call is in progress. A second call would mix its messages with those of the first;
  /// messages of other groups have lanes of their own.
  bool busy = false;
};

/// Has this rank's share of the proofs of a problem made on another thread, for a first call that
/// will come on the present device. Does nothing if the group has proved the problem, or if its
/// proof is recorded in `folder`. It sends nothing.
void prove_ahead(const comm::Communicator& comm, const plan::Problem& problem,
                 const plan::Strategy& strategy, const std::string& folder = "");

}  // namespace armillary::runtime
