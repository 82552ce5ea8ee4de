// waits.h: the rule `order`: who waits for whom, and an order in which all can happen.
#pragma once

#include <vector>

#include "armillary/plan/verify/structure.h"

namespace armillary::plan::verifier {

/// Something that happens: a compute op of a rank, or a message (both ends at once).
struct Event {
  int message = -1;  ///< Its place in the messages; -1: a compute op.
  Rank rank = 0;     ///< Compute op.
  int op = 0;
};

/// All events in an order that respects every wait, assuming the worst of the machine: no
/// buffering, and a batch of a lane starts after the one before is complete. Reports rule `order`
/// and returns nothing if a batch conflicts with itself, steps of a lane decrease, or waits form a
/// cycle, of which every op is then named.
std::vector<Event> order_events(const Plan& plan, const std::vector<Message>& messages,
                                Report& report);

}  // namespace armillary::plan::verifier
