// cells.h: the symbolic contents of the slots of a rank. Internal to verify.
//
// A cell is the smallest part of a tile that is followed: one class of blocks with one class of
// heads (classes.h). The cells of a tile of block classes 3, 4 and head classes 0, 1:
//
//   cell   0      1      2      3
//          3, 0   3, 1   4, 0   4, 1     (block class, head class)
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <vector>

#include "armillary/core/small_vector.h"
#include "armillary/plan/verify/classes.h"
#include "armillary/plan/verify/contributions.h"

namespace armillary::plan::verifier {

/// The state of one slot: the tile in it, and which cells of the tile are there. Most tiles are
/// final and need one byte per cell, which keeps large plans in memory. Two cache lines hold the
/// state of a tile of few cells, but for the sets that it sums over.
struct alignas(64) SlotState {
  int tile = -1;                 ///< -1: nothing was written yet.
  int missing = 0;               ///< Cells that were not written.
  SmallVector<char, 8> defined;  ///< By cell: 1 if it was written.
  SmallVector<int, 2> firsts;    ///< First cell of each run of the tile's blocks.
  Contributions contributions;   ///< By cell, for a partial tile; otherwise empty.

  void define(int cell) {
    missing -= defined[cell] == 0 ? 1 : 0;
    defined[cell] = 1;
  }
};

/// The cells of a view, block class by block class, and for each the head classes. Valid until
/// another tile is written to the slot. Empty for a view whose tile is not in its slot.
class ViewCells {
 public:
  struct Cell {
    int cell;  ///< Index into SlotState::defined.
    int block_class;
    int head_class;
  };
  class Iterator;

  ViewCells() = default;
  /// Requires that `tile`, the tile of the view, is in the slot. Keeps references to the view's and
  /// tile's runs.
  ViewCells(const View& view, const Tile& tile, const SideClasses& side, SlotState& state)
      : state_(&state),
        blocks_(&side.blocks),
        runs_(view.blocks.runs()),
        tile_runs_(tile.blocks.runs()),
        all_heads_(side.heads.within(tile.heads)),
        heads_(side.heads.within(view.heads)) {}

  Iterator begin() const;
  std::default_sentinel_t end() const { return {}; }
  bool empty() const { return runs_.empty(); }
  /// The sums of a partial tile, by cell of the tile.
  Contributions& contributions() const { return state_->contributions; }

  bool all_defined() const;  ///< True if every cell is there; false without cells.
  void define() const;       ///< Writes final values, or partials that sum over nothing yet.
  /// Writes the values of `source`. Requires as many cells there, all defined, and that both tiles
  /// are partial or neither is.
  void copy(const ViewCells& source) const;
  /// The sets of all cells, one after the other; nothing if the tile is not partial.
  Contributions sums() const;
  /// Writes values that `sums` of as many cells gave.
  void take(Contributions sums) const;

 private:
  SlotState* state_ = nullptr;
  const Classes* blocks_ = nullptr;
  std::span<const IdRun> runs_;       ///< Runs of the view's blocks.
  std::span<const IdRun> tile_runs_;  ///< Runs of the tile's blocks, which hold those of the view.
  ClassRange all_heads_;              ///< Head classes of the tile.
  ClassRange heads_;                  ///< Head classes of the view.
};

/// Walks the cells of a view in the order in which the slot keeps them: head classes innermost.
class ViewCells::Iterator {
 public:
  explicit Iterator(const ViewCells& cells)
      : cells_(cells), run_(cells.runs_.begin()), tile_run_(cells.tile_runs_.begin()) {
    if (run_ != cells.runs_.end()) enter_run();
  }
  /// Cells of a row of head classes follow each other, from the first head class of the tile on.
  Cell operator*() const { return {row_ + head_ - cells_.all_heads_.begin, block_, head_}; }
  bool operator==(std::default_sentinel_t) const { return run_ == cells_.runs_.end(); }
  Iterator& operator++() {
    if (++head_ < cells_.heads_.end) return *this;
    head_ = cells_.heads_.begin;
    row_ += cells_.all_heads_.count();
    if (++block_ < end_block_) return *this;
    if (++run_ != cells_.runs_.end()) enter_run();
    return *this;
  }

 private:
  /// Finds the run of the tile that holds `run_`, and the first cell of the view in it.
  void enter_run() {
    if (tile_run_->last < run_->last) {
      tile_run_ = std::lower_bound(tile_run_, cells_.tile_runs_.end(), run_->last,
                                   [](const IdRun& run, int last) { return run.last < last; });
    }
    const ClassRange blocks = cells_.blocks_->within(*run_);
    const int before = blocks.begin - cells_.blocks_->within(*tile_run_).begin;
    head_ = cells_.heads_.begin;
    block_ = blocks.begin;
    end_block_ = blocks.end;
    row_ = cells_.state_->firsts[tile_run_ - cells_.tile_runs_.begin()] +
           before * cells_.all_heads_.count();
  }

  const ViewCells& cells_;
  std::span<const IdRun>::iterator run_;
  std::span<const IdRun>::iterator tile_run_;
  int row_ = 0;        ///< Cell of the current block class and the first head class of the tile.
  int block_ = 0;      ///< Current block class.
  int end_block_ = 0;  ///< One past the last block class of the run.
  int head_ = 0;       ///< Current head class.
};

inline ViewCells::Iterator ViewCells::begin() const {
  return Iterator(*this);
}

inline bool ViewCells::all_defined() const {
  if (empty() || state_->missing == 0) return !empty();
  for (const Cell& cell : *this) {
    if (state_->defined[cell.cell] == 0) return false;
  }
  return true;
}

/// The contents of the slots of one rank. Refers to the program and the classes.
class Cells {
 public:
  Cells(const RankProgram& program, const Sides& sides)
      : program_(&program), sides_(&sides), slots_(program.slots.size()) {}

  /// Cells to be written. If another tile is in the slot, it is gone, and no cell of the new tile
  /// is there yet.
  ViewCells write(const View& view);
  /// Cells to be read; empty if another tile is in the slot.
  ViewCells read(const View& view);
  /// The same as read(view).all_defined(), at less cost.
  bool has(const View& view) {
    const SlotState& state = slots_[program_->tiles[view.tile].slot];
    if (state.tile != view.tile || view.heads.count() == 0) return false;
    return state.missing == 0 ? !view.blocks.empty() : read(view).all_defined();
  }
  /// Makes all of a tile be there: one that the caller fills.
  void define(int tile);
  /// Gives the contents of a slot to `tile`, which has the same heads and blocks as the tile in it.
  void rename(int tile) { slots_[program_->tiles[tile].slot].tile = tile; }

 private:
  /// The cells of a view whose tile is in the slot; none for a view without heads.
  ViewCells at(const View& view, SlotState& state) const;

  const RankProgram* program_;
  const Sides* sides_;
  std::vector<SlotState> slots_;
};

}  // namespace armillary::plan::verifier
