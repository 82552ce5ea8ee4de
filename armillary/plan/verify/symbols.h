// symbols.h: the rules `undefined`, `twice`, `partial` and `complete`: the plan run on symbols.
//
// The value of a final tile is only whether it is there. The value of a partial is, for each of its
// blocks and heads, the set of what it sums over:
//
//   out, lse, dq    of a query block and head: the key blocks counted
//   dk, dv          of a key block and KV head: the (query block, query head) pairs counted
//
// Heads that no view of the plan tells apart are one class, so sets stay small. A pair of blocks
// without a visible pair is never put into a set.
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/plan/verify/waits.h"

namespace armillary::plan::verifier {

/// Classes [begin, end).
struct ClassRange {
  int begin = 0;
  int end = 0;
};

/// Classes of heads: those between two neighbouring borders of any tile or view.
class HeadClasses {
 public:
  HeadClasses(const Plan& plan, bool kv);
  ClassRange within(Heads heads) const;  ///< Requires borders at both ends.
  Heads heads(int index) const { return {borders_[index], borders_[index + 1]}; }
  ClassRange sharing(Heads heads) const;  ///< Those that share a head with `heads`, not empty.

 private:
  std::vector<int> borders_;
  std::vector<int> class_of_;  ///< By head, and one past the last.
};

/// Runs all events, in order, then checks that outputs and saved tiles are complete.
/// Requires a plan that passes the other rules.
void run_symbols(const Plan& plan, const std::vector<Event>& events, Report& report);

}  // namespace armillary::plan::verifier
