// Visibility by position in two steps: blocks are sorted, then the positions that each block sees,
// a few intervals, are turned into runs of blocks by binary search. BlockUsers sweeps over the
// blocks in that order and keeps, for each group, how many of its blocks see the current one.
#include "armillary/plan/mask/visibility.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/plan/program/parallel_for_ranks.h"

namespace armillary::plan {
namespace {

bool is_interval(const Block& block) {
  return block.runs.size() == 1 && block.runs[0].step == 1;
}

bool are_intervals(const std::vector<Block>& blocks) {
  return std::all_of(blocks.begin(), blocks.end(), is_interval);
}

Interval range_of(const Block& block) {
  return block.runs.front().span();
}

/// The keys that the outermost tokens of a query block see. Looking for the first key of a block
/// among them spares most counts of pairs, because blocks that do not see each other are few.
std::vector<Interval> keys_of_corners(const Mask& mask, const Block& q) {
  std::vector<Interval> keys;
  if (q.runs.empty()) return keys;
  for (const std::int64_t token : {q.runs.back().last(), q.runs.front().begin}) {
    const std::vector<Interval> intervals = mask.keys_of({token, token + 1});
    keys.insert(keys.end(), intervals.begin(), intervals.end());
  }
  return keys;
}

/// A set of groups with the number of times that each is in it.
class CountedSet {
 public:
  explicit CountedSet(int groups)
      : counts_(groups), words_((static_cast<std::size_t>(groups) + 63) / 64) {}

  /// Both return true if the set changes.
  bool add(int group) {
    if (counts_[group]++ > 0) return false;
    words_[group / 64] |= std::uint64_t{1} << (group % 64);
    return true;
  }
  bool remove(int group) {
    if (--counts_[group] > 0) return false;
    words_[group / 64] &= ~(std::uint64_t{1} << (group % 64));
    return true;
  }
  /// The groups in the set, run by run: bits are found word by word.
  BlockIds groups() const {
    BlockIds ids;
    const int end = static_cast<int>(words_.size() * 64);
    for (int first = next(0, true); first < end;) {
      const int last = next(first, false);
      ids.append({first, last - 1});
      first = last < end ? next(last, true) : end;
    }
    return ids;
  }

 private:
  /// The first group from `from` on that is in the set, or is not; the number of bits if none is.
  int next(int from, bool in_set) const {
    for (std::size_t w = static_cast<std::size_t>(from) / 64; w < words_.size(); ++w) {
      std::uint64_t word = in_set ? words_[w] : ~words_[w];
      if (w == static_cast<std::size_t>(from) / 64) word &= ~std::uint64_t{0} << (from % 64);
      if (word != 0) return static_cast<int>(w * 64) + std::countr_zero(word);
    }
    return static_cast<int>(words_.size() * 64);
  }

  std::vector<int> counts_;
  std::vector<std::uint64_t> words_;
};

/// Calls add(place) for the places of `now` that are not in `before`, and remove(place) for the
/// reverse. Both lists ascend.
template <class Add, class Remove>
void for_each_change(std::span<const IdRun> before, std::span<const IdRun> now, const Add& add,
                     const Remove& remove) {
  // Borders of runs: between two of them, a place is in both lists, in one, or in none.
  auto old = before.begin();
  auto fresh = now.begin();
  int at = 0;
  while (old != before.end() || fresh != now.end()) {
    const int old_first = old != before.end() ? std::max(old->first, at) : INT32_MAX;
    const int new_first = fresh != now.end() ? std::max(fresh->first, at) : INT32_MAX;
    const int first = std::min(old_first, new_first);
    const bool in_old = old_first == first;
    const bool in_new = new_first == first;
    // The end of the part: where one of the two lists begins or ends.
    int end = INT32_MAX;
    end = std::min(end, in_old ? old->last + 1 : old_first);
    end = std::min(end, in_new ? fresh->last + 1 : new_first);
    for (int place = first; in_old != in_new && place < end; ++place)
      in_new ? add(place) : remove(place);
    at = end;
    if (in_old && old->last < at) ++old;
    if (in_new && fresh->last < at) ++fresh;
  }
}

}  // namespace

Visibility::Visibility(const Mask& mask, const Blocks& blocks)
    : by_position_(are_intervals(blocks.q) && are_intervals(blocks.kv)) {
  q_.count = blocks.q.size();
  kv_.count = blocks.kv.size();
  if (by_position_) {
    sort_by_position(blocks);
    find_seen(mask, blocks);
  } else {
    count_pairs(mask, blocks);
  }
}

void Visibility::sort_by_position(const Blocks& blocks) {
  for (const bool keys : {false, true}) {
    const std::vector<Block>& table = keys ? blocks.kv : blocks.q;
    SideBlocks& side = keys ? kv_ : q_;
    side.order.resize(table.size());
    std::iota(side.order.begin(), side.order.end(), 0);
    std::sort(side.order.begin(), side.order.end(),
              [&](int a, int b) { return range_of(table[a]).begin < range_of(table[b]).begin; });
    side.place.resize(table.size());
    for (std::size_t i = 0; i < side.order.size(); ++i) {
      side.place[side.order[i]] = static_cast<int>(i);
    }
  }
}

void Visibility::find_seen(const Mask& mask, const Blocks& blocks) {
  for (const bool keys : {false, true}) {
    const std::vector<Block>& table = keys ? blocks.kv : blocks.q;
    const std::vector<Block>& others = keys ? blocks.q : blocks.kv;
    const std::vector<int>& order = (keys ? q_ : kv_).order;
    SideBlocks& side = keys ? kv_ : q_;
    side.visible.resize(table.size());
    for (std::size_t b = 0; b < table.size(); ++b) {
      const Interval own = range_of(table[b]);
      int next = 0;  // The first place that is not in the list yet.
      for (const Interval& interval : keys ? mask.queries_of(own) : mask.keys_of(own)) {
        // Blocks that end after the begin of what is seen, and begin before its end.
        const auto first = std::partition_point(order.begin() + next, order.end(), [&](int other) {
          return range_of(others[other]).end <= interval.begin;
        });
        const auto end = std::partition_point(first, order.end(), [&](int other) {
          return range_of(others[other]).begin < interval.end;
        });
        if (first == end) continue;
        side.visible[b].append(
            {static_cast<int>(first - order.begin()), static_cast<int>(end - order.begin()) - 1});
        next = static_cast<int>(end - order.begin());
      }
    }
  }
}

void Visibility::count_pairs(const Mask& mask, const Blocks& blocks) {
  constexpr std::size_t kMostPairs = std::size_t{1} << 30;  // 128 MiB of bits
  if (blocks.q.size() * blocks.kv.size() > kMostPairs) {
    fail<InvalidArgument>(
        "plan: {} query blocks and {} key blocks of stripes; at most 2^30 pairs can be planned: "
        "use a smaller world, or a layout of intervals, such as zigzag",
        blocks.q.size(), blocks.kv.size());
  }
  bits_.resize((blocks.q.size() * blocks.kv.size() + 63) / 64);
  std::vector<std::int64_t> first_keys;  // By key block; -1 if it has none.
  first_keys.reserve(blocks.kv.size());
  for (const Block& kv : blocks.kv) {
    first_keys.push_back(kv.runs.empty() ? -1 : kv.runs.front().begin);
  }
  // Each thread writes whole words: 64 rows of bits fill whole words, whatever their length.
  const int groups = static_cast<int>((blocks.q.size() + 63) / 64);
  parallel_for_ranks(groups, [&](int group) {
    const std::size_t first = static_cast<std::size_t>(group) * 64;
    for (std::size_t q = first; q < std::min(first + 64, blocks.q.size()); ++q) {
      const std::vector<Interval> intervals = keys_of_corners(mask, blocks.q[q]);
      for (std::size_t kv = 0; kv < blocks.kv.size(); ++kv) {
        const bool result = std::ranges::any_of(intervals, [&](const Interval& keys) {
          return keys.begin <= first_keys[kv] && first_keys[kv] < keys.end;
        });
        if (!result && mask.empty(blocks.q[q].runs, blocks.kv[kv].runs)) continue;
        const std::size_t pair = q * kv_.count + kv;
        bits_[pair / 64] |= std::uint64_t{1} << (pair % 64);
      }
    }
  });
}

bool Visibility::complete() const {
  if (!by_position_) {
    std::size_t pairs = 0;
    for (const std::uint64_t word : bits_) pairs += static_cast<std::size_t>(std::popcount(word));
    return pairs == q_.count * kv_.count;
  }
  return kv_.count == 0 || std::ranges::all_of(q_.visible, [&](const BlockIds& visible) {
           return visible.runs().size() == 1 && visible.runs()[0].size() == kv_.count;
         });
}

bool Visibility::holds(const BlockIds& places, int place) {
  return BlockUsers::holds(places, place);
}

bool BlockUsers::holds(const BlockIds& ids, int id) {
  const std::span<const IdRun> runs = ids.runs();
  if (runs.size() == 1) return runs[0].first <= id && id <= runs[0].last;
  const auto run = std::lower_bound(runs.begin(), runs.end(), id,
                                    [](const IdRun& run, int id) { return run.last < id; });
  return run != runs.end() && run->first <= id;
}

BlockUsers::BlockUsers(const Visibility& visibility, const BlockUsersOptions& options)
    : set_of_(visibility.count(options.side)) {
  const MaskSide other = options.side == MaskSide::Keys ? MaskSide::Queries : MaskSide::Keys;
  CountedSet users(options.groups);
  sets_.emplace_back();
  const auto use_next_set = [&](int block, bool changed) {
    if (changed) sets_.push_back(users.groups());
    set_of_[block] = static_cast<int>(sets_.size()) - 1;
  };
  if (visibility.by_position()) {
    // Neighbours see nearly the same, so few places enter and leave from block to block.
    const std::vector<int>& places = visibility.ordered(other);
    std::span<const IdRun> before;
    for (const int block : visibility.ordered(options.side)) {
      const std::span<const IdRun> items = visibility.visible_blocks(options.side, block);
      bool changed = false;
      for_each_change(
          before, items, [&](int place) { changed |= users.add(options.group_of[places[place]]); },
          [&](int place) { changed |= users.remove(options.group_of[places[place]]); });
      use_next_set(block, changed);
      before = items;
    }
    return;
  }
  // If every block sees all others there is one set.
  if (visibility.complete()) {
    for (const int group : options.group_of) users.add(group);
    for (int block = 0; block < static_cast<int>(set_of_.size()); ++block) {
      use_next_set(block, block == 0);
    }
    return;
  }
  // With stripes each block is looked at by itself; its set is kept if it is not the one before.
  for (int block = 0; block < static_cast<int>(set_of_.size()); ++block) {
    CountedSet own(options.groups);
    for (int b = 0; b < static_cast<int>(visibility.count(other)); ++b) {
      const bool sees = options.side == MaskSide::Keys ? visibility.visible(b, block)
                                                       : visibility.visible(block, b);
      if (sees) own.add(options.group_of[b]);
    }
    BlockIds groups = own.groups();
    if (groups != sets_.back()) sets_.push_back(std::move(groups));
    set_of_[block] = static_cast<int>(sets_.size()) - 1;
  }
}

}  // namespace armillary::plan
