// presets.h: the named strategies, and what they are made of.
//
// Most of them are presets: a grid for forward, one or more for backward, and a check of the keys.
// A preset is one call of `grid_strategy` in a file of its own, for example ring.cpp:
//
//   grid_strategy({.name = "ring", ...}, [](const Problem& problem, const Strategy& strategy) {
//     return with_sides({.rq = problem.world}, strategy, "kv");
//   });
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "armillary/plan/schedule.h"
#include "armillary/plan/strategies/grid.h"

namespace armillary::plan {

/// The strategies that are registered from the start, in the order of tables.
std::vector<StrategyDefinition> named_strategies();

// One function per strategy, each in the file of its name; `grid` is in grid_strategy.cpp, and
// `auto` in automatic.cpp.
StrategyDefinition ring();
StrategyDefinition allgather();
StrategyDefinition ulysses();
StrategyDefinition usp();
StrategyDefinition double_ring();
StrategyDefinition bidirectional_ring();
StrategyDefinition tokenring();
StrategyDefinition attention2d();
StrategyDefinition startrail();
StrategyDefinition grid();
StrategyDefinition automatic();

/// The grids of the two passes. They may cut queries and keys differently: backward finds the
/// tokens of its u partners where forward left them. So u and the place of the head axis in the
/// nesting must be the same in all of them.
struct PassGrids {
  /// The same grid in both passes.
  PassGrids(const Grid& both)
      : forward(both), backward({both}) {}  // NOLINT(google-explicit-constructor)
  PassGrids(const Grid& one, std::vector<Grid> others)
      : forward(one), backward(std::move(others)) {}
  Grid forward;
  /// Candidates, at least one. The first that sends least with this mask and layout is taken.
  std::vector<Grid> backward;
};

/// Values of the key `backward` of a strategy that lets either side travel on its columns there: K,
/// V as in forward, or the query side.
inline constexpr const char* kSides = "kv|q|cheaper";

/// Values of the key `qkv` of a strategy that trades tokens for heads.
inline constexpr const char* kPacking = "separate|packed";

/// Grids of the key `backward`: `kv` is forward's grid, `q` has its sides exchanged, `cheaper`
/// offers both. `otherwise` is the value if the key is not given.
PassGrids with_sides(const Grid& forward, const Strategy& strategy, const std::string& otherwise);

/// A schedule of grids, each made shorter by `with_shorter_rings` for the mask at hand.
std::unique_ptr<const Schedule> grid_schedule(const PlanContext& context, const PassGrids& grids);

/// A strategy that is a grid for every problem. `grids` throws InvalidArgument for a problem that
/// it cannot solve, with the nearest legal choice; it is called by `check` and by `schedule`.
using Variants = decltype(StrategyDefinition::variants);
StrategyDefinition grid_strategy(
    StrategyInfo info, const std::function<PassGrids(const Problem&, const Strategy&)>& grids,
    Variants variants = {});

/// The value of a key as a number, or `otherwise` if the key is not given.
int number(const Strategy& strategy, const std::string& key, int otherwise = 1);
/// True if the key is given with this value; a key without a value has the value "".
bool has(const Strategy& strategy, const std::string& key, const std::string& value);

/// Divisors of n except 1 and n, ascending: 2, 3, 4 and 6 for 12.
std::vector<int> inner_divisors(int n);
/// One variant `{key, d}` for each inner divisor d of the world.
Variants each_inner_divisor(std::string key);

/// @throws InvalidArgument unless `value` of `key` divides the world; names the nearest value that
/// does.
void require_divides_world(const Problem& problem, const Strategy& strategy, const std::string& key,
                           int value);

/// @throws InvalidArgument if u exceeds the number of query heads.
void require_heads(const Problem& problem, int u, const Strategy& strategy);

}  // namespace armillary::plan
