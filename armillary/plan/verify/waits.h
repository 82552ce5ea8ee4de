// waits.h: the rule `order`: the graph of waits, and an order of all ops that respects it. Internal
// to verify.
#pragma once

#include <vector>

#include "armillary/plan/verify/structure.h"

namespace armillary::plan::verifier {

/// One action of a run: a compute op of a rank, or a message (both ends at once).
struct Action {
  Rank rank = 0;   ///< The rank whose slots it writes: that of the compute op or of the receive.
  int op = 0;      ///< The compute op, or the receive.
  Rank from = -1;  ///< The sender; -1: a compute op.
  int send = -1;   ///< The send; -1: a compute op.
  int wave = 0;    ///< All actions that it waits for are in lower waves.
  bool is_message() const { return from >= 0; }
};

/// All actions in an order that respects every wait, for the strictest machine: no buffering, and a
/// batch of a lane starts after the batch before is complete. Adds a diagnostic of the rule `order`
/// and returns nothing if ops of a batch conflict, steps of a lane decrease, or waits form a cycle;
/// then every op of the cycle is named.
std::vector<Action> order_actions(const Plan& plan, const std::vector<MatchedMessage>& messages,
                                  Diagnostics& diagnostics);

}  // namespace armillary::plan::verifier
