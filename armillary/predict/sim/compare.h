// compare.h: times of all strategies that solve a problem, on one cluster.
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/sim/cluster.h"

namespace armillary::sim {

/// One pass of one strategy.
struct PassTime {
  double end_s = 0;
  double exposed_s = 0;         ///< Mean over ranks.
  std::int64_t sent_bytes = 0;  ///< By the busiest rank.
};

/// One strategy.
struct StrategyTimes {
  plan::Strategy strategy;
  std::vector<PassTime> passes;  ///< In the order of the question.
  /// Slots and tensors of the caller, in the pass and on the rank that need most.
  std::int64_t memory_bytes = 0;
  bool fits = true;  ///< memory_bytes is at most the memory of a device.

  double total_s() const;  ///< The sum over the passes.
};

/// Simulates the passes of one strategy. @throws InvalidArgument as simulate() does.
StrategyTimes strategy_times(const plan::Problem& problem, const plan::Strategy& strategy,
                             const Cluster& cluster, const std::vector<plan::Pass>& passes);

/// Every strategy that solves the problem, the fastest first; of equals, in the order of the
/// registry. Cost: a simulation of each pass of each.
std::vector<StrategyTimes> compare_strategies(const plan::Problem& problem, const Cluster& cluster,
                                              const std::vector<plan::Pass>& passes);

}  // namespace armillary::sim
