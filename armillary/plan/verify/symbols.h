// symbols.h: the rules `undefined`, `twice`, `partial` and `complete`: the plan run on symbols.
//
// The symbol of a final tile says only whether the tile is there. The symbol of a partial tile is,
// for each of its blocks and heads, the set of blocks that it sums over:
//
//   out, lse, dq    for a query block and query head: the key blocks that were added
//   dk, dv          for a key block and KV head: the (query block, query head) pairs that were
//                   added; dk and dv have a set each, which may differ until both are complete
//
// The gradient of attention sinks has no tile: each rank adds the rows of its `delta` ops to a sum
// of its own. So one set over all ranks holds the (query block, query head) pairs that have passed
// `delta`; at the end it must hold each pair, put in once.
//
// Blocks and heads that no view of the plan tells apart are one class (classes.h), so sets stay
// small. A pair of blocks without a visible pair is never put into a set.
#pragma once

#include <vector>

#include "armillary/plan/verify/structure.h"

namespace armillary::plan::verifier {

/// True if the plan obeys the rules. Runs the ops of each rank in the order of its program, on all
/// cores. False proves nothing, for a program may wait for a message that comes out of that order:
/// run_symbols() decides, and says which rule is broken. Requires a plan that passes the other
/// rules.
bool holds_on_symbols(const Plan& plan, const std::vector<MatchedMessage>& messages);

/// Runs all actions in order, then checks that outputs and saved tiles are complete. Requires a
/// plan that passes the other rules, and its actions in an order that respects all waits. With a
/// fold the plan has one program for each class, numbered by class, and messages are between
/// classes; a message arrives with the numbers of ranks and blocks that its receiver sees.
void run_symbols(const Plan& plan, const std::vector<Action>& actions, Diagnostics& diagnostics,
                 const Fold* fold = nullptr);

}  // namespace armillary::plan::verifier
