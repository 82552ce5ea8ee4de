// interpreter.h: runs a plan on lists of terms, in the plainest way. It shares no code with verify.
//
// A term is (query block, key block, query head), for blocks with at least one visible pair, found
// token by token, and whether it has been rounded on its way, in a sum that travels narrow. Every
// partial is the list of terms that were summed into it. The only check on the way is that a view
// was written before it is read. Two plans whose results are the same lists compute the same. One
// more list holds the rows whose `delta` was added to the gradient of attention sinks, on any rank.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "armillary/plan/plan.h"

namespace armillary::mutation {

using Terms = std::vector<int>;  ///< Sorted; a term that was summed twice is there twice.

struct Interpretation {
  bool finished = false;  ///< No rank waits for ever, and no view is read before it is written.
  /// By rank, place in outputs (then in saved), block and head.
  std::map<std::tuple<int, int, int, int>, Terms> cells;
  Terms sinks;  ///< (query block, query head) of each row that was added to the sinks' gradient.
  bool operator==(const Interpretation&) const = default;
};

/// The same sums, but for which of their terms were rounded on the way.
bool equal_but_for_rounding(const Interpretation& a, const Interpretation& b);

/// Requires a plan in good form. No buffering: a message moves once the batches of both its ends
/// have started, and a batch starts after the one before it is done.
Interpretation interpret(const plan::Plan& plan);

/// Do two views of a rank get in each other's way, if one of them writes?
bool touch(const plan::RankProgram& program, const plan::View& a, const plan::View& b);

}  // namespace armillary::mutation
