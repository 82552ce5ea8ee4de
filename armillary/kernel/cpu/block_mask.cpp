// Builds a BlockMask: find_mask_tiles() cuts rows into row blocks and finds their visible pairs,
// visible_keys() gives the key ranges of partly visible ones. Pairs come sorted by query row block;
// a counting sort gives the index by key row block.
#include "armillary/kernel/cpu/block_mask.h"

#include <algorithm>

#include "armillary/core/error.h"

namespace armillary::kernel::cpu {
namespace {

std::vector<plan::Interval> rows_of(const std::vector<Strip>& strips) {
  std::vector<plan::Interval> rows;
  rows.reserve(strips.size());
  for (const Strip& strip : strips) rows.push_back(strip.rows);
  return rows;
}

/// Rows of the largest row block.
int largest(const std::vector<plan::Interval>& rows) {
  std::int64_t most = 0;
  for (const plan::Interval& block : rows) most = std::max(most, block.end - block.begin);
  return static_cast<int>(most);
}

/// first[i] = number of pairs whose key is below i, for 0 <= i <= count: the begin of each row
/// block in a list sorted by key.
template <class Key>
std::vector<std::int32_t> firsts(const std::vector<RowBlockPair>& pairs, std::size_t count,
                                 Key key) {
  std::vector<std::int32_t> first(count + 1, 0);
  for (const RowBlockPair& pair : pairs) ++first[static_cast<std::size_t>(key(pair)) + 1];
  for (std::size_t i = 0; i < count; ++i) first[i + 1] += first[i];
  return first;
}

/// Appends the ranges of one pair of row blocks, by row, then key.
void add_ranges(const std::vector<VisibleKeys>& visible, std::vector<RowRange>& ranges) {
  const std::size_t before = ranges.size();
  for (const auto& [q_row, k_rows] : visible) {
    ranges.push_back({.row = static_cast<std::int16_t>(q_row),
                      .begin = static_cast<std::int16_t>(k_rows.begin),
                      .end = static_cast<std::int16_t>(k_rows.end)});
  }
  std::sort(ranges.begin() + static_cast<std::ptrdiff_t>(before), ranges.end(),
            [](const RowRange& a, const RowRange& b) {
              return a.row != b.row ? a.row < b.row : a.begin < b.begin;
            });
}

}  // namespace

TilePairs BlockMask::tile_pairs(const RowBlockPair& pair) const {
  const plan::Interval& q = q_rows[static_cast<std::size_t>(pair.q)];
  const plan::Interval& k = k_rows[static_cast<std::size_t>(pair.k)];
  return {.q_rows = static_cast<int>(q.end - q.begin),
          .k_rows = static_cast<int>(k.end - k.begin),
          .ranges = pair.range_count == 0 ? nullptr : ranges.data() + pair.first_range,
          .range_count = pair.range_count};
}

BlockMask make_block_mask(const plan::Mask& mask, const plan::Runs& q_runs,
                          const plan::Runs& k_runs, MaskTileLimits limits) {
  ARMILLARY_CHECK(limits.q_rows < 1 << 15 && limits.k_rows < 1 << 15);
  // Row blocks, and pairs by query row block, then key row block.
  const MaskTiles mask_tiles = find_mask_tiles(mask, q_runs, k_runs, limits);
  BlockMask block_mask;
  block_mask.q_rows = rows_of(mask_tiles.q);
  block_mask.k_rows = rows_of(mask_tiles.k);
  block_mask.largest_q = largest(block_mask.q_rows);
  block_mask.largest_k = largest(block_mask.k_rows);
  block_mask.shift = mask.kv_len() - mask.q_len();
  for (const MaskTile& mask_tile : mask_tiles.visible) {
    const std::size_t first = block_mask.ranges.size();
    if (!mask_tile.whole) {
      add_ranges(visible_keys(mask, mask_tiles.q[mask_tile.q], mask_tiles.k[mask_tile.k]),
                 block_mask.ranges);
    }
    block_mask.pairs.push_back(
        {.q = static_cast<std::int32_t>(mask_tile.q),
         .k = static_cast<std::int32_t>(mask_tile.k),
         .first_range = static_cast<std::int32_t>(first),
         .range_count = static_cast<std::int32_t>(block_mask.ranges.size() - first)});
  }
  // Both indices. `by_k` is stable, so its pairs are ascending by query row block.
  const auto q_of = [](const RowBlockPair& pair) { return pair.q; };
  const auto k_of = [](const RowBlockPair& pair) { return pair.k; };
  block_mask.first_of_q = firsts(block_mask.pairs, block_mask.q_rows.size(), q_of);
  block_mask.first_of_k = firsts(block_mask.pairs, block_mask.k_rows.size(), k_of);
  block_mask.by_k.resize(block_mask.pairs.size());
  std::vector<std::int32_t> next = block_mask.first_of_k;
  for (std::size_t i = 0; i < block_mask.pairs.size(); ++i) {
    std::int32_t& place = next[static_cast<std::size_t>(block_mask.pairs[i].k)];
    block_mask.by_k[static_cast<std::size_t>(place++)] = static_cast<std::int32_t>(i);
  }
  // Positions are needed by features of the score only, and never if nothing is visible.
  if (!block_mask.pairs.empty()) {
    block_mask.q_positions = plan::positions(q_runs);
    block_mask.k_positions = plan::positions(k_runs);
  }
  return block_mask;
}

}  // namespace armillary::kernel::cpu
