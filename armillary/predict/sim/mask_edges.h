// mask_edges.h: how far the edge of a mask runs through the rows and keys of an op. Kernels work by
// tiles, and those on an edge are not used wholly, whether the edge goes through blocks or, where a
// rank has many small ones, along them.
//
//     keys ->      # # # .      rows 2 and 3 end where those above them do not: a slanted edge
//   q              # # # .      of two rows; a straight edge (rows 1 and 2) ends a tile
//   rows           # # . .
//                  # . . .
#pragma once

#include "armillary/plan/mask/mask.h"
#include "armillary/plan/plan.h"
#include "armillary/plan/program/block_ids.h"

namespace armillary::sim {

/// Rows of queries, of one head, whose first or last visible key moves from row to row. A row
/// counts once for each range of keys that it sees, and for each stretch of keys in which that
/// range begins or ends: stretches are blocks that ascend in position, so interleaved blocks of
/// several ranks have an edge each.
struct MaskEdges {
  double first = 0;
  double last = 0;
};

/// The edges of the op that sees blocks `kv` from blocks `q`, in their order. One row of 64 is
/// looked at, at most eight of a block. Between two blocks of keys an edge counts if it moves with
/// the rows, by at most two keys a row, as along the small blocks of `balanced`. Cost: for each of
/// these rows O(log bands) and one visit of each block of `kv`.
MaskEdges mask_edges(const plan::Mask& mask, const plan::Blocks& blocks, const plan::BlockIds& q,
                     const plan::BlockIds& kv);

}  // namespace armillary::sim
