// compare.cpp: each pass of each strategy is planned, simulated and reduced to a few numbers before
// the next, so the plan of one at most is in memory.
#include "armillary/predict/sim/compare.h"

#include <algorithm>

#include "armillary/predict/sim/engine.h"

namespace armillary::sim {

double StrategyTimes::total_s() const {
  double total = 0;
  for (const PassTime& pass : passes) total += pass.end_s;
  return total;
}

StrategyTimes strategy_times(const plan::Problem& problem, const plan::Strategy& strategy,
                             const Cluster& cluster, const std::vector<plan::Pass>& passes) {
  const plan::Planner planner(problem, strategy);
  StrategyTimes times{.strategy = strategy};
  for (const plan::Pass pass : passes) {
    const Timeline timeline = simulate(planner, pass, cluster);
    PassTime time{.end_s = timeline.end_s};
    // Ranks of a folded timeline stand for equally many each, so their mean is that of the world.
    for (const RankTimeline& rank : timeline.ranks) {
      time.exposed_s += rank.exposed_s / static_cast<double>(timeline.ranks.size());
      time.sent_bytes = std::max(time.sent_bytes, rank.sent_bytes);
      times.memory_bytes = std::max(times.memory_bytes, rank.slot_bytes + rank.external_bytes);
    }
    times.passes.push_back(time);
  }
  times.fits = static_cast<double>(times.memory_bytes) <= cluster.device.memory_bytes;
  return times;
}

std::vector<StrategyTimes> compare_strategies(const plan::Problem& problem, const Cluster& cluster,
                                              const std::vector<plan::Pass>& passes) {
  std::vector<StrategyTimes> all;
  for (const plan::Strategy& strategy : plan::legal_strategies(problem)) {
    all.push_back(strategy_times(problem, strategy, cluster, passes));
  }
  // Stable: strategies that make the same plan stay in the order of the registry.
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.total_s() < b.total_s(); });
  return all;
}

}  // namespace armillary::sim
