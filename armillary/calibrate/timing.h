// timing.h: seconds of a work that all ranks do at the same time. For the sources of this folder.
#pragma once

#include "armillary/bench/ranks.h"

namespace armillary::calibrate {

/// Samples that a time is the median of.
inline constexpr int kSamples = 5;

/// Median seconds of one work, warm, begun on all ranks together; short works are repeated
/// (bench::repeats_for). Ranks that are processes get the same value, so that all of them go on
/// alike. @throws the exception of a rank.
double median_seconds(bench::Ranks& ranks, const bench::Ranks::Work& work);

}  // namespace armillary::calibrate
