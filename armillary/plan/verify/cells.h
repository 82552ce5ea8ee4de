// cells.h: the symbolic contents of the slots of all ranks. Internal to verify.
#pragma once

#include <algorithm>
#include <cstddef>
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

/// The cells of a view, block by block, each with its head classes. Valid until another tile is
/// written to the slot; of a view whose tile is not in its slot there are none.
class Spots {
 public:
  Spots() = default;
  /// `view`: not empty. `cells`: of the whole tile, whose head classes are `all`; `classes`: those
  /// of the view.
  Spots(const View& view, const Tile& tile, Cell* cells, ClassRange all, ClassRange classes)
      : view_(&view),
        tile_(&tile),
        cells_(cells + classes.begin - all.begin),
        stride_(all.end - all.begin),
        first_class_(classes.begin),
        classes_(classes.end - classes.begin),
        first_(place_of(view.blocks.front())),
        in_a_row_(tile.blocks[first_ + view.blocks.size() - 1] == view.blocks.back()) {}

  int size() const { return classes_ * (view_ ? static_cast<int>(view_->blocks.size()) : 0); }
  bool empty() const { return size() == 0; }
  Spot operator[](int i) const {
    const int b = classes_ == 1 ? i : i / classes_;  // a division per cell shows in large plans
    const int c = i - b * classes_;
    const int block = view_->blocks[b];
    const std::ptrdiff_t place = in_a_row_ ? first_ + b : place_of(block);
    return {cells_ + place * stride_ + c, block, first_class_ + c};
  }

 private:
  std::ptrdiff_t place_of(int block) const {
    const std::vector<int>& all = tile_->blocks;
    return std::lower_bound(all.begin(), all.end(), block) - all.begin();
  }

  const View* view_ = nullptr;
  const Tile* tile_ = nullptr;
  Cell* cells_ = nullptr;
  int stride_ = 0;
  int first_class_ = 0;
  int classes_ = 0;
  std::ptrdiff_t first_ = 0;  ///< Place in the tile of the first block of the view.
  bool in_a_row_ = false;     ///< The others follow it there.
};

/// The contents of one rank's slots.
class Cells {
 public:
  Cells(const RankProgram& program, const HeadClasses& q_classes, const HeadClasses& kv_classes);

  /// Writing opens the tile: whatever the slot held before is gone.
  Spots write(const View& view);
  Spots read(const View& view);  ///< Empty if another tile is in the slot.
  void define(int tile);         ///< A tile that the caller fills.

 private:
  struct Content {
    int tile = -1;
    std::vector<Cell> cells;  ///< By block, then by head class of the tile.
  };
  const HeadClasses& classes(Tensor tensor) const { return is_kv(tensor) ? *kv_ : *q_; }
  Spots at(const View& view, Content& content) const;

  const RankProgram* program_;
  const HeadClasses* q_;
  const HeadClasses* kv_;
  std::vector<Content> slots_;
};

}  // namespace armillary::plan::verifier
