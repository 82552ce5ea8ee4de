#include "armillary/calibrate/timing.h"

#include <vector>

#include "armillary/bench/interleaved_timing.h"

namespace armillary::calibrate {

double median_seconds(bench::Ranks& ranks, const bench::Ranks::Work& work) {
  ranks.run(work);  // The first run is cold.
  const bench::Repeats repeats = bench::repeats_for(ranks.run(work), kSampleSeconds);
  std::vector<double> seconds;
  seconds.reserve(kSamples);
  for (int sample = 0; sample < kSamples; ++sample) seconds.push_back(ranks.run(work, repeats));
  return bench::median(seconds);
}

double median_difference(bench::Ranks& ranks, const bench::Ranks::Work& longer,
                         const bench::Ranks::Work& shorter) {
  ranks.run(longer);  // The first run is cold.
  ranks.run(shorter);
  const bench::Repeats repeats = bench::repeats_for(ranks.run(longer), kSampleSeconds);
  std::vector<double> seconds;
  seconds.reserve(kSamples);
  for (int sample = 0; sample < kSamples; ++sample) {
    seconds.push_back(ranks.run(longer, repeats) - ranks.run(shorter, repeats));
  }
  return bench::median(seconds);
}

}  // namespace armillary::calibrate
