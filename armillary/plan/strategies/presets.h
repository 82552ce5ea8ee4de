// presets.h: the named strategies. Each is one file that says how it cuts u x Rq x Rk and what
// moves.
#pragma once

#include <vector>

#include "armillary/plan/strategies/grid.h"
#include "armillary/plan/strategy.h"

namespace armillary::plan {

/// A strategy of the registry: what it is called, and the grid it makes of a problem.
struct Preset {
  StrategyInfo info;
  /// @throws InvalidArgument if the strategy cannot solve the problem: the reason and the nearest
  /// legal choice.
  Grid (*grid)(const Problem& problem, const Strategy& strategy);
};

Preset ring_preset();
Preset allgather_preset();
Preset ulysses_preset();
Preset usp_preset();

/// A required key as a number. @throws InvalidArgument unless it is a whole number of at least 1.
int positive_key(const Strategy& strategy, const std::string& key);

/// @throws InvalidArgument if u ways over heads are more than there are query heads.
void require_heads(const Problem& problem, int u, const Strategy& strategy);

}  // namespace armillary::plan
