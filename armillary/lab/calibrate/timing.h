// timing.h: seconds of a work that all ranks do at the same time. For the sources of this folder.
#pragma once

#include <span>
#include <vector>

#include "armillary/lab/bench/ranks.h"

namespace armillary::calibrate {

/// Samples that a time is the median of.
inline constexpr int kSamples = 7;

/// Seconds of a sample at least (bench::repeats_for): ranks that share cores have each had some
/// turns of the system's scheduler then.
inline constexpr double kSampleSeconds = 0.03;

/// Median seconds of one work, warm, begun on all ranks together; short works are repeated. Ranks
/// that are processes get the same value, so that all of them go on alike. @throws the exception of
/// a rank.
double median_seconds(bench::Ranks& ranks, const bench::Ranks::Work& work);

/// The same of each of several works, whose samples take turns: what else the machine does for a
/// while spoils a sample of each, not all samples of one.
std::vector<double> median_seconds(bench::Ranks& ranks, std::span<const bench::Ranks::Work> works);

/// The median of the seconds that one work takes more than another, measured in turns; as above.
double median_difference(bench::Ranks& ranks, const bench::Ranks::Work& longer,
                         const bench::Ranks::Work& shorter);

}  // namespace armillary::calibrate
