#include "armillary/kernel/cpu/schedule.h"

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

int largest(const std::vector<plan::Interval>& rows) {
  std::int64_t most = 0;
  for (const plan::Interval& block : rows) most = std::max(most, block.end - block.begin);
  return static_cast<int>(most);
}

/// first[i] = how many of `keys` (ascending) are below i, for i = 0 to `count`.
template <class Key>
std::vector<std::int32_t> firsts(const std::vector<BlockPair>& pairs, std::size_t count, Key key) {
  std::vector<std::int32_t> first(count + 1, 0);
  for (const BlockPair& pair : pairs) ++first[static_cast<std::size_t>(key(pair)) + 1];
  for (std::size_t i = 0; i < count; ++i) first[i + 1] += first[i];
  return first;
}

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

TilePairs Schedule::tile_pairs(const BlockPair& pair) const {
  const plan::Interval& q = q_rows[static_cast<std::size_t>(pair.q)];
  const plan::Interval& k = k_rows[static_cast<std::size_t>(pair.k)];
  return {.q_rows = static_cast<int>(q.end - q.begin),
          .k_rows = static_cast<int>(k.end - k.begin),
          .ranges = pair.range_count == 0 ? nullptr : ranges.data() + pair.first_range,
          .range_count = pair.range_count};
}

Schedule make_schedule(const plan::Mask& mask, const plan::Runs& q_runs, const plan::Runs& k_runs,
                       PatchLimits limits) {
  ARMILLARY_CHECK(limits.q_rows < 1 << 15 && limits.k_rows < 1 << 15);
  const Patches patches = find_patches(mask, q_runs, k_runs, limits);
  Schedule schedule;
  schedule.q_rows = rows_of(patches.q);
  schedule.k_rows = rows_of(patches.k);
  schedule.largest_q = largest(schedule.q_rows);
  schedule.largest_k = largest(schedule.k_rows);
  schedule.shift = mask.kv_len() - mask.q_len();
  for (const Patch& patch : patches.visible) {
    const std::size_t first = schedule.ranges.size();
    if (!patch.whole) {
      add_ranges(visible_keys(mask, patches.q[patch.q], patches.k[patch.k]), schedule.ranges);
    }
    schedule.pairs.push_back(
        {.q = static_cast<std::int32_t>(patch.q),
         .k = static_cast<std::int32_t>(patch.k),
         .first_range = static_cast<std::int32_t>(first),
         .range_count = static_cast<std::int32_t>(schedule.ranges.size() - first)});
  }
  const auto q_of = [](const BlockPair& pair) { return pair.q; };
  const auto k_of = [](const BlockPair& pair) { return pair.k; };
  schedule.first_of_q = firsts(schedule.pairs, schedule.q_rows.size(), q_of);
  schedule.first_of_k = firsts(schedule.pairs, schedule.k_rows.size(), k_of);
  schedule.by_k.resize(schedule.pairs.size());
  std::vector<std::int32_t> next = schedule.first_of_k;
  for (std::size_t i = 0; i < schedule.pairs.size(); ++i) {
    std::int32_t& slot = next[static_cast<std::size_t>(schedule.pairs[i].k)];
    schedule.by_k[static_cast<std::size_t>(slot++)] = static_cast<std::int32_t>(i);
  }
  if (!schedule.pairs.empty()) {
    schedule.q_positions = plan::positions(q_runs);
    schedule.k_positions = plan::positions(k_runs);
  }
  return schedule;
}

}  // namespace armillary::kernel::cpu
