// candidate.h: what the tuner may choose, and the problem that it chooses for.
//
//   Question = problem + cluster + what is free    --space.h-->   Candidates
//   Candidate = strategy + layout + transfer dtype + placement
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/sim/cluster.h"

namespace armillary::tune {

/// The device of each rank: with stride s rank r is on device (r % n) s + r / n, n = world / s.
///
///   stride 1            neighbouring ranks on neighbouring devices (`mpirun --map-by slot`)
///   stride 8            on a cluster of 8 devices a node: neighbouring ranks on neighbouring nodes
///                       (`mpirun --map-by node`)
struct Placement {
  int stride = 1;
  bool operator==(const Placement&) const = default;
};
/// `by_node` or `stride:S`.
std::string to_string(const Placement& placement);
/// The device of each rank. Requires a stride that divides the world.
std::vector<int> devices(const Placement& placement, int world);

/// One choice.
struct Candidate {
  plan::Strategy strategy;
  plan::Layout layout;
  plan::TransferDtype transfer_dtype = plan::TransferDtype::Accumulator;
  Placement placement;
  bool operator==(const Candidate&) const = default;
};
/// `usp:u=8, zigzag`; transfer dtype and placement are added if they are not the usual ones.
std::string to_string(const Candidate& candidate);

/// The parts of a candidate that the tuner may choose besides the strategy. A part that is not free
/// is that of the problem, or `by_node`.
struct Freedom {
  bool layout = true;
  bool transfer_dtype = false;  ///< Narrow sums are rounded: a choice of the user.
  bool placement = true;
  bool operator==(const Freedom&) const = default;
};

/// A problem on a cluster.
struct Question {
  plan::Problem problem;
  sim::Cluster cluster;
  std::vector<plan::Pass> passes{plan::Pass::Forward, plan::Pass::Backward};
  Freedom free;
  /// Memory of each device that attention cannot have: parameters, activations of other layers.
  std::int64_t reserved_bytes = 0;
  /// Strategies are chosen from these names only; empty: from all.
  std::vector<std::string> names = {};
  /// Strategies that are simulated in any case, with each layout: what a user has today.
  std::vector<plan::Strategy> against = {};
  /// The same problem with so many tokens; nothing if its mask cannot have that length. Used for
  /// "the longest sequence that fits" and for explanations; may be left out.
  std::function<std::optional<plan::Problem>(std::int64_t seq)> with_length = {};
};

/// The problem of a candidate: that of the question with the candidate's layout and transfer dtype.
plan::Problem problem_of(const Question& question, const Candidate& candidate);

}  // namespace armillary::tune
