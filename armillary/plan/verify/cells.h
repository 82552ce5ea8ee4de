// cells.h: the symbolic contents of the slots of all ranks. Internal to verify.
#pragma once

#include <vector>

#include "armillary/plan/verify/counted.h"
#include "armillary/plan/verify/symbols.h"

namespace armillary::plan::verifier {

/// One (block, head class) of a tile.
struct Cell {
  bool defined = false;
  Counted counted;  ///< Of partial tiles.
};

/// A cell with its place in the plan.
struct Spot {
  Cell* cell = nullptr;
  int block = 0;
  int head_class = 0;
};
using Spots = std::vector<Spot>;

/// The contents of one rank's slots.
class Cells {
 public:
  Cells(const RankProgram& program, const HeadClasses& q_classes, const HeadClasses& kv_classes);

  /// Cells of a view, block by block, each with its head classes. Writing opens the tile: whatever
  /// the slot held before is gone.
  Spots write(const View& view);
  Spots read(const View& view);  ///< Empty if another tile is in the slot.
  void define(int tile);         ///< A tile that the caller fills.

 private:
  const HeadClasses& classes(Tensor tensor) const { return is_kv(tensor) ? *kv_ : *q_; }
  Spots at(const View& view);

  const RankProgram* program_;
  const HeadClasses* q_;
  const HeadClasses* kv_;
  std::vector<int> in_slot_;              ///< Tile that is in a slot, or -1.
  std::vector<std::vector<Cell>> tiles_;  ///< Cells of the tiles that are in a slot.
};

}  // namespace armillary::plan::verifier
