// schedule.h: the parts of a strategy, for those who write one (docs/adding_a_strategy.md).
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

#include "armillary/plan/fold.h"
#include "armillary/plan/mask/visibility.h"
#include "armillary/plan/strategies/strategy.h"

namespace armillary::plan {

/// The data that all ranks of a problem share. Outlives every schedule made from it.
struct PlanContext {
  const Problem& problem;
  const Blocks& blocks;
  const Visibility& visibility;
};

/// The programs of one strategy for one problem. Immutable; threads may share it.
class Schedule {
 public:
  virtual ~Schedule() = default;

  /// Called by several threads at once. Cost: O(steps of the rank), whatever the world.
  virtual RankProgram program(Pass pass, Rank rank) const = 0;

  /// The rotations under which programs of this pass are alike if all blocks see each other, for
  /// proofs of large worlds. They are checked, not believed. With none, each rank has a proof.
  virtual Rotations rotations(Pass /*pass*/) const { return {}; }
};

/// A strategy as functions; the Strategy that they are given has options that fit `info`.
struct StrategyDefinition {
  StrategyInfo info;

  /// @throws InvalidArgument if the strategy cannot solve the problem, with the reason and the
  /// nearest legal choice. Must be cheap: it makes no blocks.
  std::function<void(const Problem&, const Strategy&)> check;

  /// Makes the schedule of a problem that passed `check`.
  std::function<std::unique_ptr<const Schedule>(const PlanContext&, const Strategy&)> schedule;

  /// Options that are worth comparing for a problem; `check` may refuse some of them. Without this
  /// function the strategy is compared once, with its defaults.
  std::function<std::vector<Options>(const Problem&)> variants = {};
};

/// Makes a strategy known by its name. Call it before other threads plan.
/// @throws InvalidArgument if the name is taken.
void add_strategy(StrategyDefinition definition);

}  // namespace armillary::plan
