// rounds.h: things that are timed beside each other, in turn, so that a neighbour of the machine
// who comes and goes is everybody's.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace armillary::bench {

/// One of the things that take turns. Its first run came before, with the check of its result.
struct Side {
  std::string name;
  /// Runs it once. The value: seconds, or a rate where the header that makes the side says so.
  std::function<double()> run;
};

/// What `work` took.
double seconds_of(const std::function<void()>& work);

/// The middle one; of an even number the upper one. Requires at least one value.
double median(std::vector<double> values);

/// Name of the side that says how many cores a round had (cores.h), and the least of a round that
/// counts.
inline constexpr const char* kCoresSide = "cores";
inline constexpr double kLeastCores = 1.8;

/// Values of one round, by the name of the side.
using Round = std::map<std::string, double>;

struct Rounds {
  int count = 0;                          ///< Rounds that the values below are of.
  std::map<std::string, double> medians;  ///< By the name of the side.
  std::map<std::string, double> leasts;   ///< Likewise: the least value of a round.
  std::vector<double> left_out = {};      ///< Cores of rounds that had fewer than kLeastCores.
  bool all_left_out = false;  ///< No round had enough of them: the values are of all, all the same.
};

/// Rounds without the side kCoresSide all count.
Rounds summarize(std::span<const Round> rounds);

/// Runs every side once a round, for about `seconds`; at least 3 rounds.
Rounds take_turns(std::span<const Side> sides, double seconds);

}  // namespace armillary::bench
