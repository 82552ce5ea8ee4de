// cores.h: whether a second core was there while something was measured on several.
//
// A second core that a neighbour uses, or that is the other half of the first (SMT), makes two
// threads as slow as one, and no efficiency says so. A round of a bench with several threads
// therefore measures two independent peaks against one, and is left out (rounds.h) where they are
// less than 1.8 of it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "armillary/bench/rounds.h"

namespace armillary::bench {

/// Rate of multiply-adds of two threads that share nothing over that of one: 2 where two cores are
/// there. The two are kept on different cores as the system counts them, 4 ms each; with the wait
/// for threads of others that still spin about 40 ms. @throws Error if there is no second thread.
double core_ratio();

/// The side kCoresSide, for benches of several threads, run first in its round.
Side cores_side();

/// `armillary bench cores`: that side alone, for rounds of programs that know nothing of it.
struct CoresCase {};
class CoresRate {
 public:
  explicit CoresRate(const CoresCase& /*given*/) {}
  static std::vector<Side> sides() { return {cores_side()}; }
};

}  // namespace armillary::bench
