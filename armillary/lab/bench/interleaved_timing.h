// interleaved_timing.h: measures several things beside each other, in turn, so that a neighbour on
// the machine who comes and goes slows down all of them alike.
//
//   turn 1: cores a b   turn 2: cores a b   ..   --summarize-->   a median and a least value of
//   each
//
// A turn runs every side once. Its values are those of the sides that ran:
//
// (1) A turn in which the side `cores` found no second core is left out. A side of that name may
//     run several times a turn; its least value decides. Without such a side every turn counts.
// (2) If no turn had a second core, all turns count, and `all_left_out` says so.
// (3) A side that refuses is not run again: it has a reason and no values. The others go on.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::bench {

/// Thrown by a side that cannot be measured. `what()` is the reason, one line for a table.
class SideRefused : public Error {
 public:
  using Error::Error;
};

/// One of the things that take turns. Sides are warm: whoever makes a side has run it once before,
/// and has checked its result.
struct Side {
  std::string name;
  /// Runs the side once. Returns seconds, or a rate if the header that makes the side says so.
  /// @throws SideRefused; every other exception ends the measurement.
  std::function<double()> run;
  /// Runs on all ranks at the same time; only ranks that are processes need to know.
  bool on_all_ranks = false;
};

/// Wall-clock seconds of one call of `work`.
double seconds_of(const std::function<void()>& work);

/// The middle value; the upper one of the two middle values if their number is even: median({4, 1,
/// 2, 3}) is 3. Requires at least one value.
double median(std::vector<double> values);

/// Name of the side that measures how many cores a turn had (cores.h), and the least value of a
/// turn that counts.
inline constexpr const char* kCoresSide = "cores";
inline constexpr double kLeastCores = 1.8;

/// The values of one turn, by the name of the side.
using Turn = std::map<std::string, double>;

struct TurnSummary {
  int count = 0;                               ///< Turns that the values below are taken from.
  std::map<std::string, double> medians;       ///< By the name of the side.
  std::map<std::string, double> leasts;        ///< Least value of any turn, likewise.
  std::vector<double> left_out = {};           ///< Cores of the turns that rule (1) leaves out.
  bool all_left_out = false;                   ///< Rule (2): values are those of all turns.
  std::map<std::string, std::string> reasons;  ///< Sides that refused, rule (3).
};

/// Medians and least values of the turns that count.
TurnSummary summarize(std::span<const Turn> turns);

/// When turns end: after `seconds`, but not before there are `least` turns.
struct TurnLimits {
  double seconds = 2;
  int least = 3;
};

/// Runs every side once a turn, in their order, on the calling thread. Ends early if every side but
/// `cores` has refused.
TurnSummary take_turns(std::span<const Side> sides, TurnLimits limits);

}  // namespace armillary::bench
