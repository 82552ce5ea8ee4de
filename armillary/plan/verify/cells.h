// cells.h: the symbolic contents of the slots of all ranks. Internal to verify.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "armillary/plan/verify/counted.h"
#include "armillary/plan/verify/symbols.h"

namespace armillary::plan::verifier {

/// What the slots know of a tile, by block, then by head class of the tile. Most tiles are final:
/// a byte for each cell is what a large plan can afford.
struct Content {
  int tile = -1;
  std::vector<char> defined;
  std::vector<Counted> counted;  ///< Of partial tiles.
};

/// The cells of a view, block by block, each with its head classes. Valid until another tile is
/// written to the slot; of a view whose tile is not in its slot there are none.
class Spots {
 public:
  Spots() = default;
  /// `view`: not empty. `content`: of the whole tile, whose head classes are `all`; `classes`:
  /// those of the view.
  Spots(const View& view, const Tile& tile, Content& content, ClassRange all, ClassRange classes)
      : view_(&view),
        tile_(&tile),
        content_(&content),
        offset_(classes.begin - all.begin),
        stride_(all.end - all.begin),
        first_class_(classes.begin),
        classes_(classes.end - classes.begin),
        first_(place_of(view.blocks.front())),
        in_a_row_(tile.blocks[first_ + view.blocks.size() - 1] == view.blocks.back()) {}

  int size() const { return classes_ * (view_ ? static_cast<int>(view_->blocks.size()) : 0); }
  bool empty() const { return size() == 0; }
  int block(int i) const { return view_->blocks[i / classes_]; }
  int head_class(int i) const { return first_class_ + i % classes_; }
  Counted& counted(int i) const { return content_->counted[cell(i)]; }  ///< Of a partial tile.

  /// False if there are none.
  bool all_defined() const {
    if (dense()) return std::find(first_cell(), first_cell() + size(), 0) == first_cell() + size();
    for (int i = 0; i < size(); ++i) {
      if (!content_->defined[cell(i)]) return false;
    }
    return !empty();
  }

  /// Final values, or partials that sum over nothing yet.
  void define() const {
    mark();
    for (int i = 0; i < partial_size(); ++i) counted(i) = {};
  }

  /// Of a view of as many cells that are all defined, and as partial.
  void copy(const Spots& source) const {
    mark();
    for (int i = 0; i < partial_size(); ++i) counted(i) = source.counted(i);
  }

 private:
  std::ptrdiff_t place_of(int block) const {
    const BlockIds& all = tile_->blocks;
    return std::lower_bound(all.begin(), all.end(), block) - all.begin();
  }
  int partial_size() const { return empty() || !tile_->partial ? 0 : size(); }
  std::ptrdiff_t cell(int i) const {
    const int b = i / classes_;
    const std::ptrdiff_t place = in_a_row_ ? first_ + b : place_of(view_->blocks[b]);
    return place * stride_ + offset_ + i % classes_;
  }
  /// Do the cells lie side by side?
  bool dense() const { return in_a_row_ && stride_ == classes_; }
  char* first_cell() const { return content_->defined.data() + first_ * stride_; }
  void mark() const {
    if (dense()) {
      std::fill_n(first_cell(), size(), 1);
      return;
    }
    for (int i = 0; i < size(); ++i) content_->defined[cell(i)] = 1;
  }

  const View* view_ = nullptr;
  const Tile* tile_ = nullptr;
  Content* content_ = nullptr;
  int offset_ = 0;  ///< Of the view's head classes in those of the tile.
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
  const HeadClasses& classes(Tensor tensor) const { return is_kv(tensor) ? *kv_ : *q_; }
  Spots at(const View& view, Content& content) const;

  const RankProgram* program_;
  const HeadClasses* q_;
  const HeadClasses* kv_;
  std::vector<Content> slots_;
};

}  // namespace armillary::plan::verifier
