// optimizer.h: AdamW and Adam. Every rank updates its pieces of the parameters; replicas stay equal
// because gradients are summed over the ranks first, and the arithmetic of an element does not
// depend on who does it.
//
//   add_squares(unit) .. --> sum_squares(owners) .. --> clip --> update(unit) ..
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/train/optimizer_options.h"
#include "armillary/train/square_sum.h"
#include "armillary/train/square_sum_fp64.h"
#include "armillary/train/store.h"

namespace armillary::train {

/// The optimizer of the pieces of a store, which must outlive it. One per rank; threads: that of
/// the rank.
class Optimizer {
 public:
  /// `dtype`: that of the pieces, of which a rank may have none.
  Optimizer(std::vector<Piece> pieces, const OptimizerOptions& options,
            at::ScalarType dtype = at::kFloat);

  /// Adds the squares of the gradients of a unit's pieces but for copies and for those with a
  /// sign_rate, without rounding: sums have the same bits however gradients are cut (square_sum.h).
  void add_squares(int unit);
  /// Adds those of the ranks that own other elements. Collective: an all_gather of 4 KiB a rank, in
  /// fp64 of 96 KiB.
  void sum_squares(comm::Communicator& owners);

  /// Begins a step: its gradients are scaled so that their 2-norm is at most `max_norm`, as torch's
  /// clip_grad_norm_ does. Returns the norm before, of the squares that were added since the last
  /// step; NaN if a gradient is not finite.
  double clip(double max_norm);

  /// Scales the gradients of a unit's pieces, then updates the pieces by AdamW (Loshchilov & Hutter
  /// 2019, arXiv:1711.05101, algorithm 2), or by Adam, whose weight decay is added to the gradient,
  /// with learning rate `lr`, in one pass over memory. Those with a sign_rate move by that alone.
  void update(int unit, double lr) { update(pieces_of(unit), lr); }
  /// The same for the pieces of a unit whose state is in a buffer (Store::staged_pieces).
  void update(const std::vector<Piece>& of_unit, double lr);

  /// Goes on as after so many steps, whose means and squares the store has.
  void resume_after(std::int64_t steps) { steps_ = steps; }

 private:
  std::vector<Piece>& pieces_of(int unit);

  std::vector<std::vector<Piece>> pieces_;  ///< By unit.
  OptimizerOptions options_;
  std::variant<SquareSum, SquareSumFp64> squares_;  ///< By dtype.
  double scale_ = 1;
  std::int64_t steps_ = 0;  ///< Steps begun, for the bias correction.
};

}  // namespace armillary::train
