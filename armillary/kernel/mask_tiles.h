// mask_tiles.h: cuts a kernel call into rectangles (mask tiles), and finds the visible keys in
// them.
//
//            key strips                 strip      neighbouring rows of a tensor, some hundred
//          0    1    2                  mask tile  a query strip against a key strip
//      0   #    .    .
//   q  1   #    \    .                  # whole: every pair visible     \ mixed: visible_keys()
//      2   #    #    \                  . hidden: the tile does not exist and costs nothing
//
// This header has no tensors: positions in, row numbers out.
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/plan/mask/mask.h"
#include "armillary/plan/runs.h"

namespace armillary::kernel {

/// Neighbouring rows of a tensor, and their global positions.
struct Strip {
  plan::Interval rows;
  plan::Runs runs;
};

/// Cuts `runs`, in memory order, into strips of at most `limit` >= 1 rows. At the end of a run, a
/// strip that is at least half full ends too. Otherwise it would hold rows from distant positions,
/// which see different keys, and fewer mask tiles would be wholly visible or wholly hidden.
std::vector<Strip> cut(const plan::Runs& runs, std::int64_t limit);

/// A query strip and a key strip with at least one visible pair.
struct MaskTile {
  std::size_t q = 0;   ///< number of the query strip
  std::size_t k = 0;   ///< number of the key strip
  bool whole = false;  ///< every pair is visible: no mask work
};

/// The strips of a call and its mask tiles.
struct MaskTiles {
  std::vector<Strip> q;
  std::vector<Strip> k;
  std::vector<MaskTile> visible;  ///< by query strip, then key strip
};

/// Most rows of a query strip and of a key strip.
struct MaskTileLimits {
  std::int64_t q_rows = 0;
  std::int64_t k_rows = 0;
};

/// Cuts both sides into strips and finds the mask tiles. Without a visible pair the result has no
/// strips either. Cost: one mask area per pair of strips; none for a query strip that sees no key.
MaskTiles find_mask_tiles(const plan::Mask& mask, const plan::Runs& q_runs,
                          const plan::Runs& k_runs, MaskTileLimits limits);

/// A query row and a range of key rows that it sees. Rows are counted from the start of their
/// strip.
struct VisibleKeys {
  std::int64_t q_row = 0;
  plan::Interval k_rows;
};

/// All visible pairs of a mask tile, each once, by query row. A query row has several ranges if the
/// key strip has several runs or the bands leave gaps, and none if it sees nothing.
/// Cost: O(log keys) per query row, run of keys and band near the tile, and O(bands) once.
std::vector<VisibleKeys> visible_keys(const plan::Mask& mask, const Strip& q, const Strip& k);

}  // namespace armillary::kernel
