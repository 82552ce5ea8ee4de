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

struct Rounds {
  int count = 0;
  std::map<std::string, double> medians;  ///< By the name of the side.
  std::map<std::string, double> leasts;   ///< Likewise: the least value of a round.
};

/// Runs every side once a round, for about `seconds`; at least 3 rounds.
Rounds take_turns(std::span<const Side> sides, double seconds);

}  // namespace armillary::bench
