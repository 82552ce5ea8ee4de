// optimizer.h: AdamW and Adam. Every rank updates its pieces of the parameters; replicas stay equal
// because gradients are summed over the ranks first, and the arithmetic of an element does not
// depend on who does it.
//
//   store: backward, reduce, finish_gradients;  optimizer: clip -> step;  store: gather_values
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/train/optimizer_options.h"
#include "armillary/train/store.h"

namespace armillary::train {

/// The optimizer of the pieces of a store, which must outlive it. One per rank; threads: that of
/// the rank.
class Optimizer {
 public:
  /// `dtype`: that of the pieces, of which a rank may have none.
  Optimizer(std::vector<Piece> pieces, const OptimizerOptions& options,
            at::ScalarType dtype = at::kFloat);

  /// Scales all gradients so that their 2-norm is at most `max_norm`, as torch's clip_grad_norm_
  /// does. Returns the norm before, NaN if a gradient is not finite: that of the pieces of all
  /// ranks of all `owners`, each element once, with the same bits however they are cut
  /// (square_sum.h). None: this rank has all. Collective over each of the groups: an all_gather of
  /// 4 KiB a rank, in fp64 of 96 KiB.
  double clip(double max_norm, std::span<comm::Communicator* const> owners = {});

  /// One step of AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2), or of Adam, whose
  /// weight decay is added to the gradient, with learning rate `lr`, in one pass over memory.
  void step(double lr);

  /// Goes on as after so many steps, whose means and squares the store has.
  void resume_after(std::int64_t steps) { steps_ = steps; }

 private:
  std::vector<Piece> pieces_;
  OptimizerOptions options_;
  at::ScalarType dtype_;
  std::int64_t steps_ = 0;  ///< Steps taken, for the bias correction.
};

}  // namespace armillary::train
