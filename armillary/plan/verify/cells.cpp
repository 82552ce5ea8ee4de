#include "armillary/plan/verify/cells.h"

namespace armillary::plan::verifier {

Spots::Spots(const View& view, const Tile& tile, const Side& side, Content& content)
    : content_(&content) {
  const std::span<const IdRun> runs = tile.blocks.runs();
  const ClassRange all = side.heads.within(tile.heads);
  const ClassRange heads = side.heads.within(view.heads);
  auto of_tile = runs.begin();
  for (const IdRun& run : view.blocks.runs()) {
    of_tile = std::lower_bound(of_tile, runs.end(), run.last,
                               [](const IdRun& held, int last) { return held.last < last; });
    const ClassRange blocks = side.blocks.within(run);
    int row = content.firsts[of_tile - runs.begin()] +
              (blocks.begin - side.blocks.within(*of_tile).begin) * all.count();
    for (int b = blocks.begin; b < blocks.end; ++b, row += all.count()) {
      for (int h = heads.begin; h < heads.end; ++h) spots_.push_back({row + h - all.begin, b, h});
    }
  }
}

Cells::Cells(const RankProgram& program, const Sides& sides)
    : program_(&program), sides_(&sides), slots_(program.slots.size()) {}

Spots Cells::at(const View& view, Content& content) const {
  const Tile& tile = program_->tiles[view.tile];
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
    content.counted.assign(tile.partial ? cells : 0, {});
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
