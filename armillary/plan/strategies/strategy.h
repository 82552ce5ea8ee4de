// strategy.h: from a problem and the name of a strategy to a plan.
//
// A strategy is a pure function from a problem to programs; strategies are known by name in one
// registry. Nearly all cut the solid heads x queries x keys along three axes, u x Rq x Rk = world,
// and choose how tiles move along each axis (strategies/grid.h). A named strategy is a preset of
// these choices.
#pragma once

#include <any>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/plan/fold.h"
#include "armillary/plan/plan.h"

namespace armillary::plan {

/// The options of a strategy: a struct of its own for each (strategies/options.h). None stands for
/// the defaults.
using Options = std::any;

/// @throws InvalidArgument, which says that options belong to another strategy.
[[noreturn]] void refuse_options();

/// The options as the struct of their strategy. @throws InvalidArgument if they are another's.
template <class O>
O options_as(const Options& options) {
  if (!options.has_value()) return O{};
  if (const O* const own = std::any_cast<O>(&options)) return *own;
  refuse_options();
}

/// A strategy by name with its options: `usp:u=4` is {"usp", UspOptions{.u = 4}}.
struct Strategy {
  std::string name = "ring";
  Options options = {};

  template <class O>
  O as() const {
    return options_as<O>(options);
  }
  /// Whether both print the same. @throws InvalidArgument for an unknown name.
  bool operator==(const Strategy& other) const;
};

/// Parses `NAME` or `NAME:key=value,...`, once, at the border: everything behind it reads options.
/// @throws InvalidArgument for an unknown name (with the nearest) or key, or for a key that is
/// missing, doubled or has a value that it does not take.
Strategy parse_strategy(std::string_view text);
/// Does nothing unless the name, in any case, with or without dashes, is that of a method whose
/// results are not exact, since ranks attend to K and V of an earlier denoising step: DistriFusion,
/// PipeFusion, AsyncDiff. parse_strategy() asks it. @throws InvalidArgument, which begins with
/// `where`, with the nearest exact strategy.
void refuse_stale(std::string_view where, std::string_view name);
/// The text that parse_strategy() reads: the keys that differ from their defaults, in alphabetical
/// order, so that a strategy has one text. @throws InvalidArgument as check_legal does.
std::string to_string(const Strategy& strategy);

/// A key of a strategy and the values it takes.
struct StrategyKey {
  std::string name;
  /// A letter for a whole number of at least 1 (`U`); names with `|` between them; a word in
  /// capitals for text that the strategy reads; empty for a key that is written without a value.
  std::string values;
  bool required = false;
  /// Sets the member of the key. @throws InvalidArgument, with `what` first, for a wrong value.
  std::function<void(Options& options, const std::string& what, const std::string& value)> set;
  /// The value of the member; nothing if it is the default. @throws InvalidArgument if no text sets
  /// it to that.
  std::function<std::optional<std::string>(const Options& options)> text;
};

/// A strategy described for help texts, tables and docs/strategies.md.
struct StrategyInfo {
  std::string name;
  std::vector<StrategyKey> keys;
  std::string summary;  ///< One line.
  std::string paper;    ///< Authors, year, arXiv id, section.
  std::string bytes;    ///< Elements that a rank sends, forward and backward, as text.
  std::string differs;  ///< How it differs from the paper.
  /// True if its rings run the other way, or both ways, when tiles then pass fewer ranks under the
  /// mask.
  bool shortens_rings = false;
};
/// Formats name and keys: `usp:u=U`, `startrail:c=C[,placement=p2p_intra|collect_intra]`.
std::string usage(const StrategyInfo& info);
/// All strategies, in the order of the registry: named ones, then those added by add_strategy().
std::vector<StrategyInfo> strategies();

/// @throws InvalidArgument if the strategy cannot solve the problem, with the reason and the
/// nearest legal choice. A mask, layout or length is never a reason.
void check_legal(const Problem& problem, const Strategy& strategy);

/// Every strategy that solves the problem, in the order of the registry, with each value of its
/// keys that makes a difference.
std::vector<Strategy> legal_strategies(const Problem& problem);

/// The reason why legal_strategies() has none of a name: the error about the first set of keys that
/// was tried, with the nearest legal choice. Empty if it has one.
/// @throws InvalidArgument for an unknown name.
std::string why_none_legal(const Problem& problem, const std::string& name);

/// Makes programs rank by rank. The data that all ranks share (blocks, visibility, schedule) is
/// computed once; a program then takes O(its steps). Immutable after construction; threads may
/// share it.
class Planner {
 public:
  /// @throws InvalidArgument if the problem is malformed (validate) or not legal (check_legal).
  Planner(const Problem& problem, Strategy strategy);

  /// The program of one rank, not lowered (passes/lower.h).
  /// @throws InvalidArgument if the rank is not in [0, world).
  RankProgram program(Pass pass, Rank rank) const;

  /// The classes of ranks that are alike in a pass, or nothing if no two are (fold.h).
  std::optional<Fold> fold(Pass pass) const;

  const Problem& problem() const;
  const Strategy& strategy() const { return strategy_; }
  const Blocks& blocks() const;

 private:
  struct Shared;
  Strategy strategy_;
  std::shared_ptr<const Shared> shared_;
};

/// The largest world of which the programs of all ranks are made together.
inline constexpr int kMostTogether = 1 << 10;

/// One plan per pass, with the programs of all ranks, made on all cores. The data that the passes
/// share is computed once.
/// @throws InvalidArgument as Planner does, and for more than 1024 ranks.
std::vector<Plan> make_plans(const Problem& problem, const Strategy& strategy,
                             const std::vector<Pass>& passes);
/// The plan of a single pass.
Plan make_plan(const Problem& problem, const Strategy& strategy, Pass pass);

}  // namespace armillary::plan
