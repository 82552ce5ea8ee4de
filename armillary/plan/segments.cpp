#include "armillary/plan/segments.h"

#include <algorithm>
#include <utility>

namespace armillary::plan {
namespace {

/// The view as one segment per block.
LocatedView in_blocks(const Blocks& blocks, const RankProgram& program, const View& view) {
  const Tile& tile = program.tiles[view.tile];
  const std::vector<Block>& table = blocks_of(blocks, tile.tensor);
  LocatedView located{.tile = view.tile,
                      .first_head = view.heads.begin - tile.heads.begin,
                      .heads = view.heads.count(),
                      .first_global_head = view.heads.begin,
                      .segments = {}};
  auto next = view.blocks.begin();
  std::int64_t token = 0;
  for (const int block : tile.blocks) {
    if (next != view.blocks.end() && *next == block) {
      located.segments.push_back({token, table[block].tokens(), table[block].runs});
      ++next;
    }
    token += table[block].tokens();
  }
  return located;
}

/// Joins segments that are neighbours in every one of the views, which show the same blocks.
void join_segments(const std::vector<LocatedView*>& views) {
  if (views.empty()) return;
  const std::size_t count = views[0]->segments.size();
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

}  // namespace

std::vector<LocatedView> locate(const Blocks& blocks, const RankProgram& program, const Op& op) {
  std::vector<LocatedView> located;
  for (const View& view : op.views) located.push_back(in_blocks(blocks, program, view));
  std::vector<LocatedView*> q_side;
  std::vector<LocatedView*> kv_side;
  for (LocatedView& view : located) {
    if (op.is_comm()) {
      join_segments({&view});
    } else {
      (is_kv(program.tiles[view.tile].tensor) ? kv_side : q_side).push_back(&view);
    }
  }
  join_segments(q_side);
  join_segments(kv_side);
  return located;
}

bool is_one_call(const Mask& mask, const std::vector<LocatedView>& located) {
  return std::all_of(located.begin(), located.end(),
                     [](const LocatedView& view) { return view.segments.size() == 1; }) &&
         !mask.empty(located[0].segments[0].positions, located[1].segments[0].positions);
}

}  // namespace armillary::plan
