#include "armillary/plan/verify/cells.h"

namespace armillary::plan::verifier {

void Spots::define() const {
  for (const Spot& spot : *this) {
    content_->defined[spot.cell] = 1;
    if (!counted().empty()) counted().clear(spot.cell);
  }
}

void Spots::copy(const Spots& source) const {
  Iterator from = source.begin();
  for (const Spot& spot : *this) {
    content_->defined[spot.cell] = 1;
    if (!counted().empty()) counted().copy(spot.cell, source.counted(), (*from).cell);
    ++from;
  }
}

Spots Cells::at(const View& view, Content& content) const {
  const Tile& tile = program_->tiles[view.tile];
  if (view.heads.count() == 0) return {};
  return {view, tile, sides_->of(tile.tensor), content};
}

Spots Cells::write(const View& view) {
  const Tile& tile = program_->tiles[view.tile];
  Content& content = slots_[tile.slot];
  if (content.tile != view.tile) {
    content.tile = view.tile;
    const Side& side = sides_->of(tile.tensor);
    const int heads = side.heads.within(tile.heads).count();
    int cells = 0;
    content.firsts.clear();
    for (const IdRun& run : tile.blocks.runs()) {
      content.firsts.push_back(cells);
      cells += side.blocks.within(run).count() * heads;
    }
    content.defined.assign(cells, 0);
    const Side& other = is_kv(tile.tensor) ? sides_->q : sides_->kv;
    content.counted.reset(tile.partial ? cells : 0, words_for(other.blocks.count()));
  }
  return at(view, content);
}

Spots Cells::read(const View& view) {
  Content& content = slots_[program_->tiles[view.tile].slot];
  return content.tile == view.tile ? at(view, content) : Spots();
}

void Cells::define(int tile) {
  const Tile& whole = program_->tiles[tile];
  const View view{.tile = tile, .heads = whole.heads, .blocks = whole.blocks};
  write(view).define();
}

}  // namespace armillary::plan::verifier
