// cores.h: measures whether a second core was there while something ran on several threads.
//
// A neighbour on the second core, or a second core that is the other half of the first (SMT), makes
// two threads as slow as one; no efficiency shows that. A turn of a bench with several threads
// therefore measures two independent peaks against one, and is left out (interleaved_timing.h) if
// they are less than 1.8 times as fast.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "armillary/lab/bench/interleaved_timing.h"

namespace armillary::bench {

/// Multiply-add rate of two threads that share nothing, over that of one thread: 2 with two cores,
/// 1 with one. The threads are kept on different cores, as the system counts cores. Takes about
/// 40 ms, half of them to wait for idle threads that still spin. @throws Error if the system gives
/// no second thread.
double core_ratio();

/// The side kCoresSide: core_ratio(). It is the first side of a turn of several threads.
Side cores_side();

/// `armillary bench cores`: that side alone, for programs whose turns do not include it.
struct CoresCase {};
class CoresRate {
 public:
  explicit CoresRate(const CoresCase& /*given*/) {}
  static std::vector<Side> sides() { return {cores_side()}; }
};

}  // namespace armillary::bench
