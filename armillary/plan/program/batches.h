// batches.h: the ops of a rank in batches, lane by lane.
//
// A batch is what starts together: one compute op, or the messages of one step of a lane that
// follow each other on it. Batches of a lane start in order. The verifier, the simulator and the
// executor all read this one derivation, so the batches that were proved are those that run.
//
//   ops       clear   send s0   recv s0   attend   send s1   attend
//   batch     0       1         1         2        3         4
//   of lane   0       1         1         0        1         0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "armillary/plan/program/program.h"

namespace armillary::plan {

/// Ops that start together.
struct Batch {
  Lane lane = kCompute;
  int step = 0;
  int next = -1;  ///< The batch that follows it on its lane; -1: none.
  int begin = 0;  ///< Its ops, as a range of Batches::order().
  int end = 0;
};

/// The batches of one program, in the order in which the program comes to their first ops.
class Batches {
 public:
  /// Requires lanes that are not negative. Cost: O(ops + lanes).
  explicit Batches(const RankProgram& program);

  std::span<const Batch> all() const { return batches_; }
  const Batch& operator[](int batch) const { return batches_[static_cast<std::size_t>(batch)]; }
  /// The batch of an op.
  int of(int op) const { return of_[static_cast<std::size_t>(op)]; }
  /// All ops by batch, those of a batch in program order.
  const std::vector<int>& order() const { return order_; }
  std::span<const int> ops(const Batch& batch) const {
    return std::span(order_).subspan(batch.begin, batch.end - batch.begin);
  }
  /// By lane, the first batch; -1: none. There is an entry for the compute lane.
  const std::vector<int>& first() const { return first_; }

 private:
  std::vector<Batch> batches_;
  std::vector<int> of_;
  std::vector<int> order_;
  std::vector<int> first_;
};

}  // namespace armillary::plan
