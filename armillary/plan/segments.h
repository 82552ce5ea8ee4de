// segments.h: where in the memory of its tile a view lies.
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/plan/plan.h"

namespace armillary::plan {

/// Rows of a tile that lie one after the other in memory: blocks that are neighbours in it.
struct Segment {
  std::int64_t begin = 0;  ///< First token in the tile.
  std::int64_t count = 0;
  Runs positions;  ///< Global positions of these tokens, in memory order.
};

/// A view, located in its tile.
struct LocatedView {
  int tile = -1;
  std::int64_t first_head = 0;  ///< In the tile.
  std::int64_t heads = 0;
  std::int64_t first_global_head = 0;
  std::vector<Segment> segments;
};

/// The views of an op that is in form (verify.h), each in as few segments as it can have. Views of
/// one side (queries; keys) of a compute op show the same blocks, and are cut into the same
/// segments. Cost: O(blocks of the tiles).
std::vector<LocatedView> locate(const Blocks& blocks, const RankProgram& program, const Op& op);

/// Whether an op that attends is one kernel call that sees all of its views: each is one segment,
/// and a pair is visible.
bool is_one_call(const Mask& mask, const std::vector<LocatedView>& located);

}  // namespace armillary::plan
