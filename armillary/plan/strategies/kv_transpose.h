// kv_transpose.h: Attention2D's transfer of K, V to the transposed place of the grid, and of dK, dV
// back to the owner of the tokens.
//
// The holder of K, V is the place whose number by rows is the owner's number by columns (kv_holder
// in grid.h). Example for 2 x 3 ranks, each with the owner of the K, V it holds:
//
//     ranks by columns      owners of K, V
//       0  2  4               0  1  2
//       1  3  5               3  4  5
//
// Nothing moves if the grid does not transpose, nor on ranks that hold their own K, V (0 and 5).
#pragma once

#include <vector>

#include "armillary/plan/strategies/grid.h"
#include "armillary/plan/strategies/program_builder.h"

namespace armillary::plan {

class KvTranspose {
 public:
  struct Lanes {
    Lane out;   ///< Lane of K, V to the holder.
    Lane back;  ///< Lane of dK, dV to the owner.
  };
  /// `builder` and what `context` refers to must outlive the object.
  KvTranspose(ProgramBuilder& builder, const GridContext& context, Rank rank, Lanes lanes);

  /// Blocks of the K, V that this rank holds when the columns begin. Blocks that no one needs are
  /// left out if they would have to travel.
  std::vector<int> held_blocks() const;

  /// Sends K or V of this rank to its holder. Returns the tile that this rank holds from then on,
  /// usable from `step` + 1 on (from `step` on if it is `tile` itself).
  int to_holder(int step, int tile);

  /// Returns a sum of dK or dV, complete in `step`, to the owner of the tokens: rounded to the
  /// input dtype in `step`, sent in `step` + 1. Blocks that did not travel get zeros at home.
  void to_owner(int step, const View& sum, int home);

 private:
  bool stays() const;

  ProgramBuilder& builder_;
  const Needs& needs_;
  Grid grid_;
  GridPlace place_;
  Lanes lanes_;
};

}  // namespace armillary::plan
