// automatic.h: `auto` in the place of a strategy: the tuner's choice for the cluster at hand.
//
//   auto                   the cluster that the environment variable ARMILLARY_CLUSTER names
//   auto:cluster=c6        a preset or a file
//   auto:traffic           not ours: a strategy of plan/ that needs no cluster
#pragma once

#include <string>
#include <string_view>

#include "armillary/plan/strategies/strategy.h"

namespace armillary::tune {

/// True for the first two texts above.
bool is_automatic(std::string_view text);

/// The choice of the tuner, and a line that says so.
struct AutomaticChoice {
  plan::Strategy strategy;
  /// `strategy auto on c6: usp:u=4, 12.300 ms a layer (simulated); ring takes 1.2 times as long`.
  /// In brackets the origin: `simulated`; `simulated before, FILE`, or `measured, FILE`, from the
  /// cache.
  std::string line;
  /// The first answer to this question in this process: the line has not been shown yet.
  bool is_new = false;
};

/// Layout, transfer dtype and placement are those of the problem. Processes whose caches differ may
/// get different answers: ranks choose together (attention/shared_choice.h). Answers are kept in
/// this process and in the user's cache, and one that `armillary tune --measure` left there goes
/// first. Threads may ask at once: one searches, the others wait for it. Cost: a search for each
/// new problem, some milliseconds to some seconds.
/// @throws InvalidArgument for `auto` without a cluster, a cluster that does not exist or has fewer
/// devices than the world, or a problem that does not fit it; IoError for a file that cannot be
/// read.
AutomaticChoice choose(std::string_view text, const plan::Problem& problem);

/// Makes `choice`, which another process made, the answer of choose() in this one. Does nothing if
/// the text names no cluster here.
void remember(std::string_view text, const plan::Problem& problem, const AutomaticChoice& choice);

/// The strategy that a text stands for: the choice of the tuner, or plan::parse_strategy().
plan::Strategy strategy_of(std::string_view text, const plan::Problem& problem);

/// Throws what strategy_of() would throw for every problem: a name or a cluster that does not
/// exist.
void check_strategy_text(std::string_view text);

}  // namespace armillary::tune
