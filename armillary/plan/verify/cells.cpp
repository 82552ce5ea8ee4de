#include "armillary/plan/verify/cells.h"

#include <utility>

namespace armillary::plan::verifier {

// A partial that is written without a source sums over nothing.
void ViewCells::define() const {
  for (const Cell& cell : *this) {
    state_->define(cell.cell);
    if (!contributions().empty()) contributions().clear(cell.cell);
  }
}

void ViewCells::copy(const ViewCells& source) const {
  Iterator from = source.begin();
  for (const Cell& cell : *this) {
    state_->define(cell.cell);
    if (!contributions().empty())
      contributions().copy(cell.cell, source.contributions(), (*from).cell);
    ++from;
  }
}

Contributions ViewCells::sums() const {
  Contributions sums;
  if (contributions().empty()) return sums;
  int cells = 0;
  for ([[maybe_unused]] const Cell& cell : *this) ++cells;
  sums.reset(cells, contributions().words());
  int to = 0;
  for (const Cell& cell : *this) sums.copy(to++, contributions(), cell.cell);
  return sums;
}

// Values of a whole tile are moved: its cells have the same order.
void ViewCells::take(Contributions sums) const {
  const bool whole = static_cast<std::size_t>(sums.cells()) == state_->defined.size();
  int from = 0;
  for (const Cell& cell : *this) {
    state_->define(cell.cell);
    if (!whole && !sums.empty()) contributions().copy(cell.cell, sums, from++);
  }
  if (whole) contributions() = std::move(sums);
}

ViewCells Cells::at(const View& view, SlotState& state) const {
  const Tile& tile = program_->tiles[view.tile];
  if (view.heads.count() == 0) return {};
  return {view, tile, sides_->of(tile.tensor), state};
}

// A new tile in the slot lays out its cells again: run by run of its blocks, and within a run one
// row of head classes per block class. Final tiles keep no contributions.
ViewCells Cells::write(const View& view) {
  const Tile& tile = program_->tiles[view.tile];
  SlotState& state = slots_[tile.slot];
  if (state.tile != view.tile) {
    state.tile = view.tile;
    const SideClasses& side = sides_->of(tile.tensor);
    const int heads = side.heads.within(tile.heads).count();
    int cells = 0;
    state.firsts.clear();
    for (const IdRun& run : tile.blocks.runs()) {
      state.firsts.push_back(cells);
      cells += side.blocks.within(run).count() * heads;
    }
    state.defined.assign(cells, 0);
    state.missing = cells;
    // Sets hold classes of blocks of the other side.
    const SideClasses& other = is_kv(tile.tensor) ? sides_->q : sides_->kv;
    state.contributions.reset(tile.partial ? cells : 0, words_for(other.blocks.count()));
  }
  return at(view, state);
}

ViewCells Cells::read(const View& view) {
  SlotState& state = slots_[program_->tiles[view.tile].slot];
  return state.tile == view.tile ? at(view, state) : ViewCells();
}

void Cells::define(int tile) {
  const Tile& whole = program_->tiles[tile];
  const View view{.tile = tile, .heads = whole.heads, .blocks = whole.blocks};
  write(view).define();
}

}  // namespace armillary::plan::verifier
