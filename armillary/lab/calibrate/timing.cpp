// timing.cpp: medians of samples that take turns, after a cold run that is not counted.
#include "armillary/lab/calibrate/timing.h"

#include <algorithm>
#include <vector>

#include "armillary/lab/bench/interleaved_timing.h"

namespace armillary::calibrate {

double median_seconds(bench::Ranks& ranks, const bench::Ranks::Work& work) {
  return median_seconds(ranks, {&work, 1}).front();
}

std::vector<double> median_seconds(bench::Ranks& ranks, std::span<const bench::Ranks::Work> works) {
  std::vector<bench::Repeats> repeats;
  for (const bench::Ranks::Work& work : works) {
    ranks.run(work);  // The first run is cold.
    // The faster of two: a run that was disturbed would ask for too few repeats.
    const double warm = std::min(ranks.run(work), ranks.run(work));
    repeats.push_back(bench::repeats_for(warm, kSampleSeconds));
  }
  std::vector<std::vector<double>> samples(works.size());
  for (int sample = 0; sample < kSamples; ++sample) {
    for (std::size_t w = 0; w < works.size(); ++w) {
      samples[w].push_back(ranks.run(works[w], repeats[w]));
    }
  }
  std::vector<double> medians;
  medians.reserve(samples.size());
  for (const std::vector<double>& of_work : samples) medians.push_back(bench::median(of_work));
  return medians;
}

double median_difference(bench::Ranks& ranks, const bench::Ranks::Work& longer,
                         const bench::Ranks::Work& shorter) {
  ranks.run(longer);  // The first run is cold.
  ranks.run(shorter);
  const bench::Repeats repeats = bench::repeats_for(ranks.run(longer), kSampleSeconds);
  std::vector<double> seconds;
  seconds.reserve(kSamples);
  for (int sample = 0; sample < kSamples; ++sample) {
    // A difference of neighbours: a slow spell of the machine is in both and cancels out.
    seconds.push_back(ranks.run(longer, repeats) - ranks.run(shorter, repeats));
  }
  return bench::median(seconds);
}

}  // namespace armillary::calibrate
