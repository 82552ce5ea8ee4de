// schedule.h: what a call over given positions and a mask has to compute, block by block.
//
// Made once for the pairs of a plan's op and used in every layer and step: no tensor is in it.
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/kernel/cpu/tiles.h"
#include "armillary/kernel/patches.h"
#include "armillary/plan/mask.h"
#include "armillary/plan/runs.h"

namespace armillary::kernel::cpu {

/// A block of queries against a block of keys that has a visible pair.
struct BlockPair {
  std::int32_t q = 0;
  std::int32_t k = 0;
  std::int32_t first_range = 0;
  std::int32_t range_count = 0;  ///< 0: every pair is visible.
};

/// Immutable once made; threads may share it. Memory: 16 bytes a pair of blocks, 6 a query row and
/// block that is partly visible, 8 a token.
struct Schedule {
  std::vector<plan::Interval> q_rows;  ///< Rows of each block, in order.
  std::vector<plan::Interval> k_rows;
  std::vector<BlockPair> pairs;  ///< By q, then k.
  std::vector<std::int32_t>
      first_of_q;                  ///< pairs of query block q: [first_of_q[q], first_of_q[q + 1])
  std::vector<std::int32_t> by_k;  ///< Numbers of pairs by k, then q.
  std::vector<std::int32_t> first_of_k;  ///< The same for by_k.
  std::vector<RowRange> ranges;
  std::vector<std::int64_t> q_positions;
  std::vector<std::int64_t> k_positions;
  std::int64_t shift = 0;  ///< kv_len - q_len of the mask.
  int largest_q = 0;       ///< Rows of the largest block.
  int largest_k = 0;

  TilePairs tile_pairs(const BlockPair& pair) const;
};

/// Requires limits below 2^15. Cost: as find_patches and, for each partly visible patch,
/// visible_keys.
Schedule make_schedule(const plan::Mask& mask, const plan::Runs& q_runs, const plan::Runs& k_runs,
                       PatchLimits limits);

}  // namespace armillary::kernel::cpu
