// strategy.h: from a problem to a plan. A strategy is a pure function; this is its registry.
//
// Every strategy cuts the solid heads x queries x keys along three axes, u x Rq x Rk = world, and
// picks how tiles move along each axis (strategies/grid.h). A named strategy is a preset of these.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/plan/plan.h"

namespace armillary::plan {

/// A strategy by name with its keys, as written: `usp:u=4` is {"usp", {{"u", "4"}}}.
struct Strategy {
  std::string name = "ring";
  std::map<std::string, std::string> keys;
  bool operator==(const Strategy&) const = default;
};

/// @throws InvalidArgument for an unknown name or key (with the nearest), or a key that is missing,
/// doubled or has another value than it takes.
Strategy parse_strategy(std::string_view text);
std::string to_string(const Strategy& strategy);

/// A key of a strategy and the values it takes.
struct StrategyKey {
  std::string name;
  /// A letter for a whole number of at least 1 (`U`); names with `|` between them; a word in
  /// capitals for text that the strategy reads; empty for a key that is written without a value.
  std::string values;
  bool required = false;
};

/// What the registry knows of a strategy, for help texts, tables and docs/strategies.md.
struct StrategyInfo {
  std::string name;
  std::vector<StrategyKey> keys;
  std::string summary;  ///< One line.
  std::string paper;    ///< Authors, year, arXiv id, section.
  std::string bytes;    ///< What a rank sends, forward and backward, in words.
  std::string differs;  ///< How it differs from the paper.
  /// Its rings turn round or go both ways where tiles then pass fewer ranks with the mask.
  bool turns_rings = false;
};
/// `usp:u=U`, `startrail:c=C[,placement=p2p_intra|collect_intra]`.
std::string usage(const StrategyInfo& info);
std::vector<StrategyInfo> strategies();

/// @throws InvalidArgument if the strategy cannot solve the problem: says the reason and the
/// nearest legal choice. A mask, layout or length is never a reason.
void check_legal(const Problem& problem, const Strategy& strategy);

/// Every strategy that solves the problem, in the order of the registry, with each value of its
/// keys that makes a difference.
std::vector<Strategy> legal_strategies(const Problem& problem);

/// Makes programs rank by rank: what all ranks share (blocks, areas) is computed once, then a
/// program takes O(its steps). Immutable after construction; threads may share it.
class Planner {
 public:
  /// @throws InvalidArgument if the problem is malformed, or as check_legal.
  Planner(const Problem& problem, Strategy strategy);

  RankProgram program(Pass pass, Rank rank) const;

  const Problem& problem() const;
  const Strategy& strategy() const { return strategy_; }
  const Blocks& blocks() const;

 private:
  struct Shared;
  Strategy strategy_;
  std::shared_ptr<const Shared> shared_;
};

/// The programs of all ranks, made on all cores. Of several passes, what they share is worked out
/// once.
/// @throws InvalidArgument as Planner, and above 1024 ranks.
std::vector<Plan> make_plans(const Problem& problem, const Strategy& strategy,
                             const std::vector<Pass>& passes);
Plan make_plan(const Problem& problem, const Strategy& strategy, Pass pass);

}  // namespace armillary::plan
