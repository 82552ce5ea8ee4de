#include "armillary/plan/strategies/visible_blocks.h"

#include <algorithm>

namespace armillary::plan {
namespace {

/// The arrived blocks of a tile from the first to the last of `blocks`.
BlockIds spanned(const BlockIds& blocks, const Arrived& arrived, const Tile& tile) {
  BlockIds all;
  for (const int block : arrived.blocks) {
    const bool between = !blocks.empty() && blocks.front() <= block && block <= blocks.back();
    if (between && includes(tile.blocks, {block})) all.push_back(block);
  }
  return all;
}

}  // namespace

VisibleBlocks visible_blocks(const Needs& needs, const ProgramBuilder& builder,
                             const ArrivedPair& pair) {
  const auto& [row, column, in_one_call] = pair;
  VisibleBlocks visible;
  for (const int q : row.blocks) {
    if (std::any_of(column.blocks.begin(), column.blocks.end(),
                    [&](int kv) { return needs.visible(q, kv); })) {
      visible.q_blocks.push_back(q);
    }
  }
  // The dropped query blocks see none of these keys, so it is enough to ask the kept ones.
  for (const int kv : column.blocks) {
    if (std::any_of(visible.q_blocks.begin(), visible.q_blocks.end(),
                    [&](int q) { return needs.visible(q, kv); })) {
      visible.kv_blocks.push_back(kv);
    }
  }
  if (!in_one_call) return visible;
  // Gathered tiles hold only needed blocks, so some blocks in between may not be there.
  return {.q_blocks = spanned(visible.q_blocks, row, builder[row.tiles[0]]),
          .kv_blocks = spanned(visible.kv_blocks, column, builder[column.tiles[0]])};
}

}  // namespace armillary::plan
