// waits.h: the rule `order`: the graph of waits, and an order of all ops that respects it. Internal
// to verify.
#pragma once

#include <vector>

#include "armillary/plan/verify/structure.h"

namespace armillary::plan::verifier {

/// One event of a run: a compute op of a rank, or a message (both ends at once).
struct Event {
  int message = -1;  ///< Index of the message; -1: a compute op.
  Rank rank = 0;     ///< Compute op only.
  int op = 0;        ///< Compute op only.
  int wave = 0;      ///< All events that it waits for are in lower waves.
};

/// All events in an order that respects every wait, for the strictest machine: no buffering, and a
/// batch of a lane starts after the batch before is complete. Adds a diagnostic of the rule `order`
/// and returns nothing if ops of a batch conflict, steps of a lane decrease, or waits form a cycle;
/// then every op of the cycle is named.
std::vector<Event> order_events(const Plan& plan, const std::vector<MatchedMessage>& messages,
                                Diagnostics& diagnostics);

}  // namespace armillary::plan::verifier
