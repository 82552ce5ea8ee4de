// cells.h: the symbolic contents of the slots of all ranks. Internal to verify.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <vector>

#include "armillary/plan/verify/classes.h"
#include "armillary/plan/verify/counted.h"

namespace armillary::plan::verifier {

/// What the slots know of a tile, by block class, then by head class of the tile. Most tiles are
/// final: a byte for each cell is what a large plan can afford.
struct Content {
  int tile = -1;
  std::vector<char> defined;
  Counted counted;          ///< Of partial tiles.
  std::vector<int> firsts;  ///< Of each run of the tile's blocks, its first cell.
};

/// The cells of a view, block class by block class, each with its head classes. Valid until another
/// tile is written to the slot; of a view whose tile is not in its slot there are none.
class Spots {
 public:
  struct Spot {
    int cell;
    int block_class;
    int head_class;
  };
  class Iterator;

  Spots() = default;
  Spots(const View& view, const Tile& tile, const Side& side, Content& content)
      : content_(&content),
        blocks_(&side.blocks),
        runs_(view.blocks.runs()),
        tile_runs_(tile.blocks.runs()),
        all_heads_(side.heads.within(tile.heads)),
        heads_(side.heads.within(view.heads)) {}

  Iterator begin() const;
  std::default_sentinel_t end() const { return {}; }
  bool empty() const { return runs_.empty(); }
  Counted& counted() const { return content_->counted; }  ///< Of the cells of a partial tile.

  bool all_defined() const;  ///< False if there are none.
  void define() const;       ///< Final values, or partials that sum over nothing yet.
  /// Of a view of as many cells that are all defined, and as partial.
  void copy(const Spots& source) const;

 private:
  Content* content_ = nullptr;
  const Classes* blocks_ = nullptr;
  std::span<const IdRun> runs_;       ///< Of the view.
  std::span<const IdRun> tile_runs_;  ///< Each of the others lies in one of these.
  ClassRange all_heads_;
  ClassRange heads_;
};

class Spots::Iterator {
 public:
  explicit Iterator(const Spots& spots)
      : spots_(spots), run_(spots.runs_.begin()), tile_run_(spots.tile_runs_.begin()) {
    if (run_ != spots.runs_.end()) enter_run();
  }
  Spot operator*() const { return {row_ + head_ - spots_.all_heads_.begin, block_, head_}; }
  bool operator==(std::default_sentinel_t) const { return run_ == spots_.runs_.end(); }
  Iterator& operator++() {
    if (++head_ < spots_.heads_.end) return *this;
    head_ = spots_.heads_.begin;
    row_ += spots_.all_heads_.count();
    if (++block_ < end_block_) return *this;
    if (++run_ != spots_.runs_.end()) enter_run();
    return *this;
  }

 private:
  void enter_run() {
    if (tile_run_->last < run_->last) {
      tile_run_ = std::lower_bound(tile_run_, spots_.tile_runs_.end(), run_->last,
                                   [](const IdRun& held, int last) { return held.last < last; });
    }
    const ClassRange blocks = spots_.blocks_->within(*run_);
    const int before = blocks.begin - spots_.blocks_->within(*tile_run_).begin;
    head_ = spots_.heads_.begin;
    block_ = blocks.begin;
    end_block_ = blocks.end;
    row_ = spots_.content_->firsts[tile_run_ - spots_.tile_runs_.begin()] +
           before * spots_.all_heads_.count();
  }

  const Spots& spots_;
  std::span<const IdRun>::iterator run_;
  std::span<const IdRun>::iterator tile_run_;
  int row_ = 0;  ///< Cell of the block class and the first head class of the tile.
  int block_ = 0;
  int end_block_ = 0;  ///< Of the run.
  int head_ = 0;
};

inline Spots::Iterator Spots::begin() const {
  return Iterator(*this);
}

inline bool Spots::all_defined() const {
  for (const Spot& spot : *this) {
    if (content_->defined[spot.cell] == 0) return false;
  }
  return !empty();
}

/// The contents of one rank's slots.
class Cells {
 public:
  Cells(const RankProgram& program, const Sides& sides)
      : program_(&program), sides_(&sides), slots_(program.slots.size()) {}

  /// Writing opens the tile: whatever the slot held before is gone.
  Spots write(const View& view);
  Spots read(const View& view);  ///< Empty if another tile is in the slot.
  void define(int tile);         ///< A tile that the caller fills.
  /// What the slot holds is `tile` from now on, which has the same heads and blocks.
  void rename(int tile) { slots_[program_->tiles[tile].slot].tile = tile; }

 private:
  Spots at(const View& view, Content& content) const;

  const RankProgram* program_;
  const Sides* sides_;
  std::vector<Content> slots_;
};

}  // namespace armillary::plan::verifier
