// optimizer.h: AdamW. Every rank updates its own replica; replicas stay equal because the gradients
// are summed over the ranks first and all ranks then do the same arithmetic.
//
//   store: zero_gradients -> backward (adds into them) -> reduce;  optimizer: clip -> step
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/train/optimizer_options.h"
#include "armillary/train/store.h"

namespace armillary::train {

/// AdamW for the pieces of a store, which must outlive it. One per rank; threads: that of the rank.
class Optimizer {
 public:
  Optimizer(std::vector<Piece> pieces, const OptimizerOptions& options);

  /// Scales all gradients so that their 2-norm is at most `max_norm`, as torch's clip_grad_norm_
  /// does. Returns the norm before, summed in fp64 over all pieces in one fixed order, so it is
  /// equal on ranks with equal gradients, however they are cut into pieces.
  double clip(double max_norm);

  /// One step of AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2) with learning rate
  /// `lr`, in one pass over memory.
  void step(double lr);

  /// Goes on as after so many steps, whose means and squares the store has.
  void resume_after(std::int64_t steps) { steps_ = steps; }

 private:
  std::vector<Piece> pieces_;
  OptimizerOptions options_;
  std::int64_t steps_ = 0;  ///< Steps taken, for AdamW's bias correction.
};

}  // namespace armillary::train
