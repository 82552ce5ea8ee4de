// step_messages.h: the gathers and sums of a training step alone, in the order of its program and
// with its waits, on memory that is there from the start.
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/train/step_proof.h"

namespace armillary::bench {

/// Values that the gathers and sums of a step move, each once.
struct StepValues {
  std::int64_t all = 0;
  /// Those that no unit but the first can hide, which is an embedding: gathers that begin before
  /// any unit runs, sums that begin when all others have run, and the last gather of an update.
  std::int64_t lone = 0;
};

/// Requires a program without copies and tp.
StepValues step_values(const train::ProvedStep& step);

/// Those of one rank. Threads: that of the rank.
class StepMessages {
 public:
  /// Stages 1 to 3. `step` must outlive it.
  StepMessages(const train::ProvedStep& step, int rank, int world);

  /// All of a step. Collective.
  void run(comm::Communicator& comm);

 private:
  /// Memory of a unit, whole and the share of the rank.
  struct UnitMemory {
    std::vector<std::int64_t> counts;
    std::vector<float> values, own_values, gradients, own_gradients;
    comm::Request gather = {};
  };

  void run_op(comm::Communicator& comm, const plan::Op& op);
  static void finish(comm::Communicator& comm, comm::Request& request);

  const train::ProvedStep& step_;
  std::vector<UnitMemory> units_;
  comm::Request sum_ = {};  ///< That under way.
};

}  // namespace armillary::bench
