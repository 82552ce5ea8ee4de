// symbols.h: the rules `undefined`, `twice`, `partial` and `complete`: the plan run on symbols.
//
// The value of a final tile is only whether it is there. The value of a partial is, for each of its
// blocks and heads, the set of what it sums over:
//
//   out, lse, dq    of a query block and head: the key blocks counted
//   dk, dv          of a key block and KV head: the (query block, query head) pairs counted; two
//                   sums, that need not be over the same before they are complete
//
// The gradient of attention sinks has no tile: each rank adds the rows of its `delta` ops to a sum
// of its own. So there is one set over all ranks, of the (query block, query head) pairs that have
// passed `delta`, and each is in it once in the end.
//
// Blocks and heads that no view of the plan tells apart are one class (classes.h), so sets stay
// small. A pair of blocks without a visible pair is never put into a set.
#pragma once

#include <vector>

#include "armillary/plan/verify/waits.h"

namespace armillary::plan::verifier {

/// Runs all events, in order, then checks that outputs and saved tiles are complete.
/// Requires a plan that passes the other rules.
void run_symbols(const Plan& plan, const std::vector<Message>& messages,
                 const std::vector<Event>& events, Report& report);

}  // namespace armillary::plan::verifier
