// programs.h: the programs of all ranks run one after the other, each as far as its messages have
// come. Internal to verify.
//
// Actions in the order of the graph of waits visit all ranks again and again, and a large plan fits
// no cache. But ops that touch the same memory wait for each other in the order of the program, so
// a rank may run its program alone: all that it needs of others comes in messages. Messages are
// kept until they are received, so a rank runs many ops before the next one does. In a ring of P
// ranks:
//
//   first up      rank 0 waits in step 1, rank 1 in step 2, .., rank P - 1 is done
//   then up       rank 0 is done, rank 1 is done, ..
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "armillary/core/small_vector.h"
#include "armillary/plan/verify/contributions.h"
#include "armillary/plan/verify/structure.h"

namespace armillary::plan::verifier {

/// A message on its way: the sets of each partial view.
using Parcel = SmallVector<Contributions, 1>;

/// The ops of a rank. `compute` and `send` return false if a rule is broken.
struct RankOps {
  std::function<bool(Rank, int op)> compute;
  std::function<bool(Rank, int op, Parcel&)> send;  ///< Fills the parcel, which is empty.
  std::function<void(Rank, int op, Parcel&)> receive;
};

/// Runs all programs. There is one thread for each of `threads`, which has the ranks of a part of
/// the world. Returns false if a rule is broken, if a rank waits for a message that never comes, or
/// if the system gives no threads or memory; some ops have then not run.
bool run_programs(const Plan& plan, const std::vector<MatchedMessage>& messages,
                  std::span<const RankOps> threads);

}  // namespace armillary::plan::verifier
