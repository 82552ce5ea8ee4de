// presets.h: the named strategies. Each is one file that says how it cuts u x Rq x Rk and what
// moves.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "armillary/plan/schedule.h"
#include "armillary/plan/strategies/grid.h"

namespace armillary::plan {

/// The registry as it starts, in the order of tables.
std::vector<StrategyDefinition> named_strategies();

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

/// Forward and backward may cut queries and keys differently: both find their tokens, of the same u
/// partners, where forward left them. u and the place of its axis are the same in both.
struct PassGrids {
  PassGrids(const Grid& both)
      : forward(both), backward({both}) {}  // NOLINT(google-explicit-constructor)
  PassGrids(const Grid& one, std::vector<Grid> others)
      : forward(one), backward(std::move(others)) {}
  Grid forward;
  std::vector<Grid> backward;  ///< Of several, the first that sends least with this mask is taken.
};

/// The key `backward` of a strategy that lets either side travel on its columns in backward.
inline constexpr const char* kSides = "kv|q|cheaper";

/// The key `qkv` of a strategy that trades tokens for heads.
inline constexpr const char* kPacking = "separate|packed";

/// Backward as the key says: `kv` as forward, `q` with sides exchanged, or the cheaper of the two.
PassGrids with_sides(const Grid& forward, const Strategy& strategy, const std::string& otherwise);

/// A schedule of grids; rings are turned to the shorter side.
std::unique_ptr<const Schedule> grid_schedule(const PlanContext& context, const PassGrids& grids);

/// A strategy that is a grid for every problem. `grids` refuses what it cannot solve.
using Variants = decltype(StrategyDefinition::variants);
StrategyDefinition grid_strategy(
    StrategyInfo info, const std::function<PassGrids(const Problem&, const Strategy&)>& grids,
    Variants variants = {});

/// A key as a number, or `otherwise` if it is not given.
int number(const Strategy& strategy, const std::string& key, int otherwise = 1);
/// Has the key, of those without or with a value, this value?
bool has(const Strategy& strategy, const std::string& key, const std::string& value);

/// Divisors of n but 1 and n, ascending.
std::vector<int> inner_divisors(int n);
/// `{key, d}` for each of them.
Variants each_inner_divisor(std::string key);

/// @throws InvalidArgument unless `value` of `key` divides the world; names the nearest that does.
void require_divides_world(const Problem& problem, const Strategy& strategy, const std::string& key,
                           int value);

/// @throws InvalidArgument if u ways over heads are more than there are query heads.
void require_heads(const Problem& problem, int u, const Strategy& strategy);

}  // namespace armillary::plan
