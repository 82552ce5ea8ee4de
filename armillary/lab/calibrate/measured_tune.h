// measured_tune.h: the best few candidates of a search, run on the ranks at hand: the topology
// scheduler of WallFacer (arXiv:2407.00611, section 4.4), for any strategy.
//
//   tune::Answer (simulated) --the best few--> layers on ranks, in turns --> the same, reordered
#pragma once

#include <memory>
#include <vector>

#include "armillary/lab/bench/interleaved_timing.h"
#include "armillary/lab/bench/layer.h"
#include "armillary/predict/tune/answer.h"

namespace armillary::calibrate {

/// The evaluations of an answer that are worth a measurement, as ascending indices into its list:
/// at most `count` of those that fit and that run on ranks as they are placed. The fastest of each
/// strategy and layout go before its variants and before plans that an earlier evaluation has under
/// another name, and simulated ones before estimated ones.
std::vector<std::size_t> worth_measuring(const tune::Answer& answer, int count);

/// The answer with the medians of the turns: the chosen one is the fastest that was measured.
/// `measured` and `seconds` belong together. Requires at least one.
tune::Answer with_measured(tune::Answer answer, const std::vector<std::size_t>& measured,
                           const std::vector<double>& seconds);

/// Layers of some evaluations, ready to take turns. One thread calls; processes that are ranks all
/// make the same object.
class MeasuredTune {
 public:
  /// Makes and runs each layer once. @throws InvalidArgument for other passes than forward, or
  /// forward and backward; the exception of a rank.
  MeasuredTune(const tune::Question& question, const tune::Answer& answer,
               const std::vector<std::size_t>& measured, const bench::MakeRanks& make_ranks);

  /// A side for each evaluation, named by its place in `measured`. They must not outlive this
  /// object.
  std::vector<bench::Side> sides();

 private:
  bool backward_ = false;
  std::vector<std::unique_ptr<bench::Layer>> layers_;
};

}  // namespace armillary::calibrate
