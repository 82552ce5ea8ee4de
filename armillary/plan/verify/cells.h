// cells.h: the symbolic contents of the slots of all ranks. Internal to verify.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "armillary/core/small_vector.h"
#include "armillary/plan/verify/classes.h"
#include "armillary/plan/verify/counted.h"

namespace armillary::plan::verifier {

/// What the slots know of a tile, by block class, then by head class of the tile. Most tiles are
/// final: a byte for each cell is what a large plan can afford.
struct Content {
  int tile = -1;
  std::vector<char> defined;
  std::vector<Counted> counted;  ///< Of partial tiles.
  std::vector<int> firsts;       ///< Of each run of the tile's blocks, its first cell.
};

/// The cells of a view, block class by block class, each with its head classes. Valid until another
/// tile is written to the slot; of a view whose tile is not in its slot there are none.
class Spots {
 public:
  Spots() = default;
  Spots(const View& view, const Tile& tile, const Side& side, Content& content);

  int size() const { return static_cast<int>(spots_.size()); }
  bool empty() const { return spots_.empty(); }
  int block_class(int i) const { return spots_[i].block_class; }
  int head_class(int i) const { return spots_[i].head_class; }
  Counted& counted(int i) const { return content_->counted[spots_[i].cell]; }  ///< If partial.

  /// False if there are none.
  bool all_defined() const {
    const auto is_defined = [this](const Spot& spot) { return content_->defined[spot.cell] != 0; };
    return !empty() && std::all_of(spots_.begin(), spots_.end(), is_defined);
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
  struct Spot {
    int cell = 0;
    int block_class = 0;
    int head_class = 0;
  };
  int partial_size() const { return empty() || content_->counted.empty() ? 0 : size(); }
  void mark() const {
    for (const Spot& spot : spots_) content_->defined[spot.cell] = 1;
  }

  Content* content_ = nullptr;
  SmallVector<Spot, 2> spots_;
};

/// The contents of one rank's slots.
class Cells {
 public:
  Cells(const RankProgram& program, const Sides& sides);

  /// Writing opens the tile: whatever the slot held before is gone.
  Spots write(const View& view);
  Spots read(const View& view);  ///< Empty if another tile is in the slot.
  void define(int tile);         ///< A tile that the caller fills.

 private:
  Spots at(const View& view, Content& content) const;

  const RankProgram* program_;
  const Sides* sides_;
  std::vector<Content> slots_;
};

}  // namespace armillary::plan::verifier
