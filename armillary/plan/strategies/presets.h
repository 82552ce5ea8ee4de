// presets.h: the named strategies, and what they are made of.
//
// Most of them are presets: a grid for forward, one or more for backward, and a check of the keys.
// A preset is one call of `grid_strategy` in a file of its own, for example ring.cpp:
//
//   grid_strategy<RingOptions>({.name = "ring", ...}, [](const Problem& problem, auto& options) {
//     return with_sides({.rq = problem.world}, options.backward);
//   });
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "armillary/plan/strategies/grid.h"
#include "armillary/plan/strategies/option_keys.h"
#include "armillary/plan/strategies/options.h"
#include "armillary/plan/strategies/schedule.h"

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

/// The key `backward` of a strategy that lets either side travel on its columns there.
template <class O>
StrategyKey backward_key() {
  return choice_key(
      "backward", &O::backward,
      {{"kv", BackwardSide::Kv}, {"q", BackwardSide::Q}, {"cheaper", BackwardSide::Cheaper}});
}

/// The key `qkv` of a strategy that trades tokens for heads.
template <class O>
StrategyKey packing_key() {
  return choice_key("qkv", &O::packed, {{"separate", false}, {"packed", true}});
}

/// Grids of a side in backward: `Kv` is forward's grid, `Q` has its sides exchanged, `Cheaper`
/// offers both.
PassGrids with_sides(const Grid& forward, BackwardSide backward);

/// A schedule of grids, each made shorter by `with_shorter_rings` for the mask at hand.
std::unique_ptr<const Schedule> grid_schedule(const PlanContext& context, const PassGrids& grids);

/// A strategy that is a grid for every problem. `grids` throws InvalidArgument for a problem that
/// it cannot solve, with the nearest legal choice; it is called by `check` and by `schedule`.
StrategyDefinition grid_strategy(
    StrategyInfo info, const std::function<PassGrids(const Problem&, const Strategy&)>& grids);

/// The variants of StrategyDefinition, of the options of one strategy.
template <class O>
using VariantsOf = std::function<std::vector<O>(const Problem&)>;
template <class O>
decltype(StrategyDefinition::variants) erased(VariantsOf<O> variants) {
  return [variants = std::move(variants)](const Problem& problem) {
    const std::vector<O> typed = variants(problem);
    return std::vector<Options>(typed.begin(), typed.end());
  };
}

/// The same for a strategy that has options.
template <class O>
StrategyDefinition grid_strategy(StrategyInfo info,
                                 const std::function<PassGrids(const Problem&, const O&)>& grids,
                                 VariantsOf<O> variants = {}) {
  StrategyDefinition definition =
      grid_strategy(std::move(info), [grids](const Problem& problem, const Strategy& strategy) {
        return grids(problem, strategy.as<O>());
      });
  if (variants) definition.variants = erased<O>(std::move(variants));
  return definition;
}

/// Divisors of n except 1 and n, ascending: 2, 3, 4 and 6 for 12.
std::vector<int> inner_divisors(int n);

/// A key and its value, for errors.
struct KeyNumber {
  const char* strategy;
  const char* key;
  int value;
};
/// @throws InvalidArgument unless the value divides the world; names the nearest value that does.
void require_divides_world(const Problem& problem, const KeyNumber& key);

/// @throws InvalidArgument if u exceeds the number of query heads.
void require_heads(const Problem& problem, int u, const Strategy& strategy);

}  // namespace armillary::plan
