// evaluator.h: times of candidates of one question, cheap or exact.
//
//   estimate()   paths of a few ranks (predict/sim/rank_path.h): a bound, an estimate, bytes,
//   memory simulate()   all ranks on the cluster
//
// Both add up the passes of the question, and use all cores. Results are kept. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "armillary/predict/tune/answer.h"

namespace armillary::tune {

class Evaluator {
 public:
  /// @throws InvalidArgument for a problem that cannot be planned, more ranks than devices, or a
  /// dtype without a kernel curve. `question` must outlive this object.
  explicit Evaluator(const Question& question);
  ~Evaluator();

  /// Evaluations of these candidates with bound, estimate, bytes and memory.
  /// Cost: for each, the programs of at most four ranks.
  std::vector<Evaluation> estimate(const std::vector<Candidate>& candidates);
  /// Messages that a simulation of an estimated candidate moves, by the ranks of its estimate.
  std::int64_t messages(const Candidate& candidate) const;
  /// Fills the times and the memory of all ranks, or the error of a plan that is wrong. Cost: that
  /// of sim::simulate() for each pass.
  void simulate(Evaluation& evaluation);

  /// TooLarge or Wrong, if that is known of the evaluation.
  Outcome outcome_of(const Evaluation& evaluation, Outcome otherwise) const;
  /// Bytes of memory that attention may use on each device.
  double memory_limit() const;

 private:
  struct Estimated {
    Evaluation evaluation;
    std::int64_t messages = 0;
  };
  class Estimator;

  const Question& question_;
  std::vector<std::unique_ptr<Estimator>> idle_;  ///< As many as threads have used at once.
  std::map<std::string, Estimated> estimated_;    ///< By candidate.
};

/// Simulates those of some evaluations of an answer, given as indices, that the search did not
/// simulate: what is measured is shown with its simulated times. Evaluations that prove too large
/// or wrong are marked so and leave the list.
void simulate_all(const Question& question, Answer& answer, std::vector<std::size_t>& evaluations);

/// Seconds that no strategy can undercut: see Answer::floor_s. The bytes are bounded for forward
/// and for as many queries as keys only.
double floor_s(const Question& question);

}  // namespace armillary::tune
