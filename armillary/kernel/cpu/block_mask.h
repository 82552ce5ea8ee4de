// block_mask.h: visible pairs of query and key row blocks, for given positions and a mask.
//
//   positions, mask --find_mask_tiles--> row blocks and visible pairs
//                   --visible_keys-----> key ranges of each row, for partly visible pairs
//
// A BlockMask is made once for the pairs of a plan's op and used in every layer and step: it holds
// no tensor. Pairs of row blocks without a visible (query, key) pair do not exist in it, so they
// cost nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/kernel/cpu/isa_kernels.h"
#include "armillary/kernel/mask_tiles.h"
#include "armillary/plan/mask/mask.h"
#include "armillary/plan/runs.h"

namespace armillary::kernel::cpu {

/// A query row block and a key row block with at least one visible (query, key) pair.
struct RowBlockPair {
  std::int32_t q = 0;  ///< number of the query row block
  std::int32_t k = 0;  ///< number of the key row block
  /// The pair has ranges[i] for first_range <= i < first_range + range_count. A count of 0 means
  /// that every (query, key) pair is visible.
  std::int32_t first_range = 0;
  std::int32_t range_count = 0;
};

/// Immutable once made; threads may share it. Memory: 16 bytes a pair of row blocks, 6 bytes a
/// range of a partly visible pair, 8 bytes a token.
struct BlockMask {
  /// Rows of each row block, in memory order.
  std::vector<plan::Interval> q_rows;
  std::vector<plan::Interval> k_rows;
  /// Visible pairs of row blocks, by q, then k.
  std::vector<RowBlockPair> pairs;
  /// Query row block q has pairs[i] for first_of_q[q] <= i < first_of_q[q + 1].
  std::vector<std::int32_t> first_of_q;
  /// Indices into `pairs`, by k, then q. Key row block k has by_k[i] for first_of_k[k] <= i <
  /// first_of_k[k + 1].
  std::vector<std::int32_t> by_k;
  std::vector<std::int32_t> first_of_k;
  /// Visible key ranges of rows, by pair, then query row, then key.
  std::vector<RowRange> ranges;
  /// Global position of each row; empty if no pair is visible.
  std::vector<std::int64_t> q_positions;
  std::vector<std::int64_t> k_positions;
  std::int64_t shift = 0;  ///< kv_len - q_len of the mask
  int largest_q = 0;       ///< rows of the largest query row block
  int largest_k = 0;       ///< rows of the largest key row block

  /// The pair as kernels take it. `nonfinite` is false; drivers set it from what was packed.
  TilePairs tile_pairs(const RowBlockPair& pair) const;
};

/// Cuts rows into row blocks of at most `limits` rows and finds their visible pairs. Requires
/// limits below 2^15, since RowRange counts rows in 16 bits. Cost: find_mask_tiles, and
/// visible_keys for each partly visible mask tile.
BlockMask make_block_mask(const plan::Mask& mask, const plan::Runs& q_runs,
                          const plan::Runs& k_runs, MaskTileLimits limits);

}  // namespace armillary::kernel::cpu
