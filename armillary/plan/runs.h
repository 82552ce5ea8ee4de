// runs.h: sets of token positions as strided runs, with closed forms.
//
// A run is `count` stripes of `width` neighbouring positions, `step` apart. A contiguous piece is
// one run of step 1; the shard of a rank under a striped layout is one run whatever its length. So
// planning never holds a list of positions or an S x S matrix.
//
//   Run{.begin = 3, .count = 4}                          3 4 5 6
//   Run{.begin = 1, .count = 3, .step = 4}               1 5 9
//   Run{.begin = 4, .count = 2, .step = 8, .width = 2}   4 5 12 13
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace armillary::plan {

/// Half-open range of positions [begin, end).
struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const Interval&) const = default;

  bool empty() const { return end <= begin; }
};

/// The positions that are in both; possibly an empty() interval.
constexpr Interval intersect(Interval a, Interval b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

/// Positions begin + i * step + w with 0 <= i < count and 0 <= w < width, in this order (i outer).
/// Invariants: count >= 1, 1 <= width <= step or count == 1; positions lie in [0, 2^56). Runs made
/// by this library are canonical: a contiguous run has step = width = 1.
struct Run {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::int64_t step = 1;
  std::int64_t width = 1;
  bool operator==(const Run&) const = default;

  std::int64_t tokens() const { return count * width; }
  /// The largest position.
  std::int64_t last() const { return begin + (count - 1) * step + width - 1; }
  /// The smallest interval that holds the run.
  Interval span() const { return {begin, last() + 1}; }
  bool contiguous() const { return step == width || count == 1; }
};

/// The run of all positions of an interval that is not empty.
constexpr Run run_of(Interval range) {
  return {.begin = range.begin, .count = range.end - range.begin};
}

/// The tokens of a block or a shard, in memory order: run after run.
using Runs = std::vector<Run>;

/// A rule on the distance of a key from a query: lo <= k - q <= hi.
struct Distance {
  static constexpr std::int64_t kAnyLo = std::numeric_limits<std::int64_t>::min();
  static constexpr std::int64_t kAnyHi = std::numeric_limits<std::int64_t>::max();

  std::int64_t lo = kAnyLo;
  std::int64_t hi = kAnyHi;
};

/// Number of positions of all runs.
std::int64_t tokens(const Runs& runs);

/// Positions written out in memory order. For kernels and tests; planning never needs it.
std::vector<std::int64_t> positions(const Runs& runs);

/// The part of `run` inside `range`, as at most three canonical runs in the same order.
Runs clip(const Run& run, Interval range);
Runs clip(const Runs& runs, Interval range);

/// The same tokens in the same order, with neighbouring runs joined: intervals that touch, and
/// stripes that continue a strided run. Two intervals that do not touch stay two runs.
///
///   join({4 5}, {6 7})   ->  {4 5 6 7}
///   join({1 5}, {9 13})  ->  {1 5 9 13}, one run of step 4
Runs join(const Runs& runs);

/// Number of pairs (q, k), q in `q_run` and k in `k_run`, with lo <= k - q <= hi.
/// Cost: O(1) if a run is contiguous or both have the same step, as within one layout; else
/// O(q_run.width + k_run.width) floor sums of O(log) each. No loop over tokens.
/// @throws InvalidArgument if there are 2^63 pairs or more.
std::int64_t count_pairs(const Run& q_run, const Run& k_run, Distance distance);

/// Number of positions that are in both. Requires that no side has a position twice. Cost: one
/// count_pairs() for every two runs.
std::int64_t count_common(const Runs& a, const Runs& b);

}  // namespace armillary::plan
