#include "armillary/plan/verify/cells.h"

namespace armillary::plan::verifier {

Cells::Cells(const RankProgram& program, const HeadClasses& q_classes,
             const HeadClasses& kv_classes)
    : program_(&program), q_(&q_classes), kv_(&kv_classes), slots_(program.slots.size()) {}

Spots Cells::at(const View& view, Content& content) const {
  if (view.blocks.empty()) return {};  // an input of a rank without tokens
  const Tile& tile = program_->tiles[view.tile];
  const HeadClasses& heads = classes(tile.tensor);
  return {view, tile, content, heads.within(tile.heads), heads.within(view.heads)};
}

Spots Cells::write(const View& view) {
  const Tile& tile = program_->tiles[view.tile];
  Content& content = slots_[tile.slot];
  if (content.tile != view.tile) {
    content.tile = view.tile;
    const ClassRange heads = classes(tile.tensor).within(tile.heads);
    const std::size_t cells = tile.blocks.size() * (heads.end - heads.begin);
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
