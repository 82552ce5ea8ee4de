// Locates views in two steps: each view as one segment per block, then joined. Two neighbouring
// segments are joined only if they are neighbours in every view of the same side, so that all views
// of a side keep the same segments.
#include "armillary/plan/segments.h"

#include <algorithm>
#include <utility>

#include "armillary/plan/operands.h"

namespace armillary::plan {
namespace {

/// The view as one segment per block. `segment_of` has the tokens and the positions of a block.
template <class SegmentOf>
LocatedView in_blocks(const RankProgram& program, const View& view, const SegmentOf& segment_of) {
  const Tile& tile = program.tiles[view.tile];
  LocatedView located{.tile = view.tile,
                      .first_head = view.heads.begin - tile.heads.begin,
                      .heads = view.heads.count(),
                      .first_global_head = view.heads.begin,
                      .segments = {}};
  // One walk over the tile's blocks, counting tokens; the view's blocks are met in the same order.
  auto next = view.blocks.begin();
  std::int64_t token = 0;
  for (const int block : tile.blocks) {
    const std::int64_t tokens = segment_of.tokens(tile, block);
    if (next != view.blocks.end() && *next == block) {
      located.segments.push_back({token, tokens, segment_of.positions(tile, block)});
      ++next;
    }
    token += tokens;
  }
  return located;
}

/// Joins segments that are neighbours in memory in all of the views. Requires views of the same
/// blocks, in one segment per block.
void join_segments(const std::vector<LocatedView*>& views) {
  if (views.empty()) return;
  // joins[s]: segment s follows segment s - 1 in every view.
  const std::size_t count = views.front()->segments.size();
  std::vector<bool> joins(count, true);
  for (const LocatedView* view : views) {
    for (std::size_t s = 1; s < count; ++s) {
      const Segment& before = view->segments[s - 1];
      if (before.begin + before.count != view->segments[s].begin) joins[s] = false;
    }
  }
  for (LocatedView* view : views) {
    std::vector<Segment> joined;
    for (std::size_t s = 0; s < count; ++s) {
      Segment& segment = view->segments[s];
      if (s == 0 || !joins[s]) {
        joined.push_back(std::move(segment));
        continue;
      }
      joined.back().count += segment.count;
      Runs& positions = joined.back().positions;
      positions.insert(positions.end(), segment.positions.begin(), segment.positions.end());
    }
    for (Segment& segment : joined) segment.positions = join(segment.positions);
    view->segments = std::move(joined);
  }
}

/// Blocks with the positions of their tokens.
struct BlockTable {
  const Blocks& blocks;
  std::int64_t tokens(const Tile& tile, int block) const { return at(tile, block).tokens(); }
  const Runs& positions(const Tile& tile, int block) const { return at(tile, block).runs; }
  const Block& at(const Tile& tile, int block) const {
    return blocks_of(blocks, tile.tensor)[block];
  }
};

/// Blocks of which only the sizes are known.
struct BlockSizes {
  const Measures& measures;
  std::int64_t tokens(const Tile& tile, int block) const {
    return measures.tokens(tile.tensor, {block});
  }
  Runs positions(const Tile&, int) const { return {}; }
};

template <class SegmentOf>
std::vector<LocatedView> locate_by(const SegmentOf& segment_of, const RankProgram& program,
                                   const Op& op) {
  std::vector<LocatedView> located;
  for (const View& view : op.views) located.push_back(in_blocks(program, view, segment_of));
  // The views of a message need not agree with each other, so each is joined on its own; those of
  // one side of a compute op are joined together.
  std::vector<std::vector<LocatedView*>> sides(kMostSides);
  for (LocatedView& view : located) {
    if (op.is_comm()) {
      join_segments({&view});
    } else {
      sides[(*program.words)[program.tiles[view.tile].tensor].side].push_back(&view);
    }
  }
  for (const std::vector<LocatedView*>& side : sides) join_segments(side);
  return located;
}

/// True if a query of one list of blocks sees a key of the other.
bool sees_any(const Mask& mask, const Blocks& blocks, const BlockIds& q, const BlockIds& kv) {
  return std::any_of(q.begin(), q.end(), [&](int query) {
    return std::any_of(kv.begin(), kv.end(), [&](int key) {
      return !mask.empty(blocks.q[query].runs, blocks.kv[key].runs);
    });
  });
}

}  // namespace

std::vector<LocatedView> locate(const Blocks& blocks, const RankProgram& program, const Op& op) {
  return locate_by(BlockTable{blocks}, program, op);
}

std::vector<LocatedView> locate(const Measures& measures, const RankProgram& program,
                                const Op& op) {
  return locate_by(BlockSizes{measures}, program, op);
}

bool is_one_call(const Mask& mask, const std::vector<LocatedView>& located) {
  const auto has_one_segment = [](const LocatedView& view) { return view.segments.size() == 1; };
  if (!std::all_of(located.begin(), located.end(), has_one_segment)) return false;
  return !mask.empty(located[QkvOperand::kQ].segments.front().positions,
                     located[QkvOperand::kK].segments.front().positions);
}

bool is_one_call(const Mask& mask, const Blocks& blocks, const RankProgram& program, const Op& op) {
  // Blocks ascend, so those of one run are neighbours in any tile.
  const auto is_one_stretch = [&](const View& view) {
    return view.blocks.runs().size() == 1 || view.blocks == program.tiles[view.tile].blocks;
  };
  if (!std::all_of(op.views.begin(), op.views.end(), is_one_stretch)) {
    return is_one_call(mask, locate(blocks, program, op));
  }
  return sees_any(mask, blocks, op.views[QkvOperand::kQ].blocks, op.views[QkvOperand::kK].blocks);
}

}  // namespace armillary::plan
