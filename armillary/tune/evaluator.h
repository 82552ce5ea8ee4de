// evaluator.h: times of candidates of one question, cheap or exact.
//
//   estimate()   paths of a few ranks (sim/rank_path.h): a bound, an estimate, bytes, memory
//   simulate()   all ranks on the cluster
//
// Both add up the passes of the question. Results are kept. Not thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "armillary/sim/rank_path.h"
#include "armillary/tune/answer.h"

namespace armillary::tune {

class Evaluator {
 public:
  /// @throws InvalidArgument for a problem that cannot be planned, more ranks than devices, or a
  /// dtype without a kernel curve. `question` must outlive this object.
  explicit Evaluator(const Question& question);

  /// Fills bound, estimate, bytes and memory of a rival of this candidate.
  /// Cost: the programs of at most four ranks.
  Rival estimate(const Candidate& candidate);
  /// Messages that a simulation of the candidate moves, by its estimated ranks.
  std::int64_t messages(const Candidate& candidate);
  /// Fills the times and the memory of all ranks. Cost: that of sim::simulate() for each pass.
  void simulate(Rival& rival);

  /// Bytes of memory that attention may use on each device.
  double memory_limit() const;

 private:
  struct Estimated {
    Rival rival;
    std::int64_t messages = 0;
  };
  const Estimated& estimated(const Candidate& candidate);
  const std::vector<plan::Rank>& looked_at(const plan::Problem& problem);

  const Question& question_;
  sim::Topology topology_;
  std::map<int, sim::RankPaths> paths_;                       ///< By stride of the placement.
  std::map<std::string, std::vector<plan::Rank>> looked_at_;  ///< By layout.
  std::map<std::string, Estimated> estimated_;
};

/// Seconds that no strategy can undercut: see Answer::floor_s. The bytes are bounded for forward
/// and for as many queries as keys only.
double floor_s(const Question& question);

}  // namespace armillary::tune
