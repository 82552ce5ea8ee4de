#include "armillary/plan/verify/cells.h"

#include <algorithm>

namespace armillary::plan::verifier {

Cells::Cells(const RankProgram& program, const HeadClasses& q_classes,
             const HeadClasses& kv_classes)
    : program_(&program),
      q_(&q_classes),
      kv_(&kv_classes),
      in_slot_(program.slots.size(), -1),
      tiles_(program.tiles.size()) {}

Spots Cells::at(const View& view) {
  const Tile& tile = program_->tiles[view.tile];
  const HeadClasses& heads = classes(tile.tensor);
  const int first = heads.begin(tile.heads.begin);
  const int width = heads.begin(tile.heads.end) - first;
  const int begin = heads.begin(view.heads.begin);
  const int end = heads.begin(view.heads.end);
  Spots spots;
  spots.reserve(view.blocks.size() * (end - begin));
  for (const int block : view.blocks) {
    const auto place = std::lower_bound(tile.blocks.begin(), tile.blocks.end(), block);
    Cell* const row = tiles_[view.tile].data() + (place - tile.blocks.begin()) * width;
    for (int c = begin; c < end; ++c) spots.push_back({row + c - first, block, c});
  }
  return spots;
}

Spots Cells::write(const View& view) {
  const Tile& tile = program_->tiles[view.tile];
  int& occupant = in_slot_[tile.slot];
  if (occupant != view.tile) {
    if (occupant >= 0) tiles_[occupant] = {};
    occupant = view.tile;
    const HeadClasses& heads = classes(tile.tensor);
    const int width = heads.begin(tile.heads.end) - heads.begin(tile.heads.begin);
    tiles_[view.tile].assign(tile.blocks.size() * width, {});
  }
  return at(view);
}

Spots Cells::read(const View& view) {
  if (in_slot_[program_->tiles[view.tile].slot] != view.tile) return {};
  return at(view);
}

void Cells::define(int tile) {
  const Tile& whole = program_->tiles[tile];
  for (const Spot& spot : write({.tile = tile, .heads = whole.heads, .blocks = whole.blocks})) {
    spot.cell->defined = true;
  }
}

}  // namespace armillary::plan::verifier
