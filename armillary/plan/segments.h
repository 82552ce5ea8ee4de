// segments.h: the place of a view in the memory of its tile.
//
// A view shows some blocks of a tile. Blocks that are neighbours in the tile are one stretch of
// memory, so a kernel takes them in one call. A tile of blocks 3, 4, 7 and 8, with 10 tokens each:
//
//   view of blocks 3, 4      one segment: tokens 0-19 of the tile
//   view of blocks 3, 7, 8   two segments: tokens 0-9 and 20-39
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/plan/plan.h"

namespace armillary::plan {

/// Tokens of a tile that lie one after the other in memory: one block, or neighbouring blocks.
struct Segment {
  std::int64_t begin = 0;  ///< First token in the tile.
  std::int64_t count = 0;
  Runs positions;  ///< Global positions of these tokens, in memory order, if there are blocks.
};

/// A view with its place in the tile. All its segments show the same heads.
struct LocatedView {
  int tile = -1;
  std::int64_t first_head = 0;  ///< Counted from the first head of the tile.
  std::int64_t heads = 0;
  std::int64_t first_global_head = 0;  ///< Counted from head 0 of the tensor.
  std::vector<Segment> segments;
};

/// Locates the views of a well-formed op (verify.h), each in as few segments as possible. The views
/// of one side (queries or keys) of a compute op show the same blocks and are cut into the same
/// segments, so that a kernel call takes segment s of each. Cost: O(blocks of the tiles).
std::vector<LocatedView> locate(const Blocks& blocks, const RankProgram& program, const Op& op);
/// The same for programs in any words, without the positions of tokens.
std::vector<LocatedView> locate(const Measures& measures, const RankProgram& program, const Op& op);

/// True if an op that attends is one kernel call over all of its views: each view is one segment,
/// and at least one pair is visible. Requires the located views of such an op.
bool is_one_call(const Mask& mask, const std::vector<LocatedView>& located);
/// The same for an op whose views are not located yet; in most ops every view is one run of blocks
/// or a whole tile, and then nothing is.
bool is_one_call(const Mask& mask, const Blocks& blocks, const RankProgram& program, const Op& op);

}  // namespace armillary::plan
