// schedule.h: what a strategy is made of. Adding one: docs/adding_a_strategy.md.
//
//   StrategyDefinition --check-->     refuses a problem it cannot solve, with the reason
//                      --schedule-->  Schedule --program--> RankProgram, rank by rank
//
// A definition is registered once (add_strategy) and is then known by name to every reader: the
// command line, the library, the tables and the tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "armillary/plan/strategy.h"

namespace armillary::plan {

/// What all ranks of a problem share. Outlives every schedule made from it.
struct PlanContext {
  const Problem& problem;
  const Blocks& blocks;
  const BlockAreas& areas;
};

/// The programs of one strategy for one problem. Immutable; threads may share it.
class Schedule {
 public:
  virtual ~Schedule() = default;

  /// Called by several threads at once. Cost: O(steps of the rank), whatever the world.
  virtual RankProgram program(Pass pass, Rank rank) const = 0;
};

struct StrategyDefinition {
  StrategyInfo info;

  /// @throws InvalidArgument if the strategy cannot solve the problem: the reason and the nearest
  /// legal choice. Keys have been checked against `info`. Cheap: makes no blocks.
  std::function<void(const Problem&, const Strategy&)> check;

  std::function<std::unique_ptr<const Schedule>(const PlanContext&, const Strategy&)> schedule;

  /// Values of the keys that are worth comparing for a problem; some may be refused by `check`.
  /// Empty: the name alone.
  std::function<std::vector<std::map<std::string, std::string>>(const Problem&)> variants = {};
};

/// Makes a strategy known by its name. Call it before other threads plan.
/// @throws InvalidArgument if the name is taken.
void add_strategy(StrategyDefinition definition);

}  // namespace armillary::plan
