// kv_transpose.h: K, V to the ranks whose place read by rows is theirs, and dK, dV back.
//
// Only where the grid transposes (Grid::transposed); else, and where a place is its own, nothing
// moves.
#pragma once

#include <vector>

#include "armillary/plan/strategies/grid.h"
#include "armillary/plan/strategies/program_builder.h"

namespace armillary::plan {

class KvTranspose {
 public:
  struct Lanes {
    Lane there;
    Lane back;
  };
  KvTranspose(ProgramBuilder& builder, const Needs& needs, const Grid& grid, Rank rank,
              Lanes lanes);

  /// Blocks of the K, V that this rank holds when the columns begin; without those that nobody
  /// needs if they came from elsewhere.
  std::vector<int> held_blocks() const;

  /// K or V to the place that reads by rows as this one does by columns. Returns the tile that this
  /// rank holds then.
  int there(int step, int tile);

  /// The sum of dK or dV on this place to the owner of the tokens, in the input dtype.
  void back(int step, const View& sum, int home);

 private:
  bool stays() const;

  ProgramBuilder& builder_;
  const Needs& needs_;
  Grid grid_;
  Place place_;
  Lanes lanes_;
};

}  // namespace armillary::plan
