#include "armillary/calibrate/timing.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "armillary/bench/interleaved_timing.h"

namespace armillary::calibrate {

bench::Repeats repeats_for(double seconds) {
  constexpr double kSeconds = 0.03;
  constexpr double kLong = 0.25;
  constexpr double kMost = 1000;
  if (seconds >= kLong) return {};
  const double timed = std::clamp(std::ceil(kSeconds / std::max(seconds, 1e-9)), 1.0, kMost);
  return {.untimed = 1, .timed = static_cast<int>(timed)};
}

double median_seconds(bench::Ranks& ranks, const bench::Ranks::Work& work) {
  ranks.run(work);  // The first run is cold.
  const bench::Repeats repeats = repeats_for(ranks.run(work));
  std::vector<double> seconds;
  seconds.reserve(kSamples);
  for (int sample = 0; sample < kSamples; ++sample) seconds.push_back(ranks.run(work, repeats));
  return bench::median(seconds);
}

double median_difference(bench::Ranks& ranks, const bench::Ranks::Work& longer,
                         const bench::Ranks::Work& shorter) {
  ranks.run(longer);  // The first run is cold.
  ranks.run(shorter);
  const bench::Repeats repeats = repeats_for(ranks.run(longer));
  std::vector<double> seconds;
  seconds.reserve(kSamples);
  for (int sample = 0; sample < kSamples; ++sample) {
    seconds.push_back(ranks.run(longer, repeats) - ranks.run(shorter, repeats));
  }
  return bench::median(seconds);
}

}  // namespace armillary::calibrate
