// Bands and their areas. The constructor of Mask makes all bands tight, checks that they are
// disjoint and sorts them, with bounds for binary search. Queries then look at the few bands near
// two runs, and count pairs of each band in closed form (count_pairs in runs.h).
#include "armillary/plan/mask/mask.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "armillary/core/checked.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"

namespace armillary::plan {
namespace {

/// The sum, or an error if it does not fit in 63 bits.
std::int64_t add(std::int64_t area, std::int64_t pairs) {
  if (__builtin_add_overflow(area, pairs, &area)) {
    fail<InvalidArgument>("mask: 2^63 visible pairs or more; fewer are required");
  }
  return area;
}

/// Sorts by (q.begin, k.begin); the other fields make the order unique, so that equal sets of bands
/// compare equal.
void sort(std::vector<Band>& bands) {
  std::sort(bands.begin(), bands.end(), [](const Band& a, const Band& b) {
    const auto key = [](const Band& band) {
      return std::tuple(band.q.begin, band.k.begin, band.q.end, band.k.end, band.lo, band.hi);
    };
    return key(a) < key(b);
  });
}

/// Refuses bands whose ranges leave the sequence.
void check_ranges(const std::vector<Band>& bands, std::int64_t q_len, std::int64_t kv_len) {
  const auto inside = [](Interval range, std::int64_t length) {
    return 0 <= range.begin && range.begin <= range.end && range.end <= length;
  };
  for (const Band& band : bands) {
    if (!inside(band.q, q_len) || !inside(band.k, kv_len)) {
      fail<InvalidArgument>("mask: band {} given; ranges inside 0-{}/0-{} are required",
                            to_string(band), q_len, kv_len);
    }
  }
}

/// Sweeps over the queries: `open` holds the bands that reach the query at which the next band
/// begins, and only those are compared with it.
void check_disjoint(const std::vector<Band>& sorted) {
  std::vector<const Band*> open;
  for (const Band& band : sorted) {
    std::erase_if(open, [&](const Band* other) { return other->q.end <= band.q.begin; });
    for (const Band* other : open) {
      const Band common = intersect(*other, band);
      if (common.empty()) continue;
      const std::int64_t q = common.q.begin;
      fail<InvalidArgument>(
          "mask: bands {} and {} overlap at query {}, key {}; disjoint bands are required",
          to_string(*other), to_string(band), q, std::max(common.k.begin, q + common.lo));
    }
    open.push_back(&band);
  }
}

/// Visible pairs of a tight band between two runs.
std::int64_t area_of(const Band& band, const Run& q_run, const Run& k_run) {
  const Distance distance = {band.lo, band.hi};
  const Interval q = intersect(band.q, q_run.span());
  const Interval k = intersect(band.k, k_run.span());
  if (q.empty() || k.empty()) return 0;
  // Most pairs of runs are wholly hidden or wholly visible.
  const std::int64_t least = k.begin - (q.end - 1);
  const std::int64_t most = k.end - 1 - q.begin;
  if (most < distance.lo || least > distance.hi) return 0;
  const bool whole =
      q == q_run.span() && k == k_run.span() && least >= distance.lo && most <= distance.hi;
  std::int64_t pairs = 0;
  if (whole && !__builtin_mul_overflow(q_run.tokens(), k_run.tokens(), &pairs)) return pairs;
  // Strided runs are clipped to at most three runs each.
  if (q_run.contiguous() && k_run.contiguous()) return count_pairs(run_of(q), run_of(k), distance);
  std::int64_t area = 0;
  for (const Run& q_part : clip(q_run, q)) {
    for (const Run& k_part : clip(k_run, k)) area += count_pairs(q_part, k_part, distance);
  }
  return area;
}

/// The intervals sorted, and joined if they touch or overlap.
std::vector<Interval> united(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](Interval a, Interval b) { return a.begin < b.begin; });
  std::vector<Interval> joined;
  for (const Interval next : intervals) {
    if (!joined.empty() && next.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, next.end);
    } else {
      joined.push_back(next);
    }
  }
  return joined;
}

}  // namespace

Band tight(const Band& band) {
  if (band.empty()) return {};
  auto [q, k, lo, hi] = band;
  // First lo and hi are cut to the distances that the ranges allow. After that both occur, and they
  // are small enough to be added to positions. Then the ranges are cut to the tokens that see or
  // are seen; this removes no pair.
  lo = std::max(lo, k.begin - (q.end - 1));
  hi = std::min(hi, k.end - 1 - q.begin);
  if (lo > hi) return {};
  q = intersect(q, {k.begin - hi, k.end - lo});
  k = intersect(k, {q.begin + lo, q.end + hi});
  return {q, k, lo, hi};
}

Band intersect(const Band& a, const Band& b) {
  return tight(
      {intersect(a.q, b.q), intersect(a.k, b.k), std::max(a.lo, b.lo), std::min(a.hi, b.hi)});
}

Mask::Mask(std::int64_t q_len, std::int64_t kv_len, std::vector<Band> bands)
    : q_len_(q_len), kv_len_(kv_len), bands_(std::move(bands)) {
  if (q_len < 0 || kv_len < 0 || q_len > kMaxLength || kv_len > kMaxLength) {
    fail<InvalidArgument>("mask: {} and {} given; lengths of 0 to {} are required",
                          count_of(q_len, "query", "queries"), count_of(kv_len, "key"), kMaxLength);
  }
  // Bands are checked as given, so that errors name what the caller wrote; then they are made
  // tight, which may change their order.
  check_ranges(bands_, q_len, kv_len);
  sort(bands_);
  check_disjoint(bands_);
  for (Band& band : bands_) band = tight(band);
  std::erase_if(bands_, [](const Band& band) { return band.empty(); });
  sort(bands_);

  // Running maxima of ends forwards, and minima of begins backwards. q.begin ascends already.
  for (const Band& band : bands_) reach_.push_back({band.q, band.k});
  for (std::size_t i = 1; i < reach_.size(); ++i) {
    reach_[i].q.end = std::max(reach_[i].q.end, reach_[i - 1].q.end);
    reach_[i].k.end = std::max(reach_[i].k.end, reach_[i - 1].k.end);
  }
  for (std::size_t i = reach_.size(); i-- > 1;) {
    reach_[i - 1].k.begin = std::min(reach_[i - 1].k.begin, reach_[i].k.begin);
  }
}

std::span<const Band> Mask::near(Interval q, Interval k) const {
  // Each condition holds for a first part of the bands and for no band after it. The end of the
  // second part is found by walking, because callers visit these bands anyway.
  const auto first = std::partition_point(
      reach_.begin(), reach_.end(),
      [&](const BandReach& reach) { return reach.q.end <= q.begin || reach.k.end <= k.begin; });
  const auto last = std::find_if_not(first, reach_.end(), [&](const BandReach& reach) {
    return reach.q.begin < q.end && reach.k.begin < k.end;
  });
  return std::span(bands_).subspan(first - reach_.begin(), last - first);
}

bool Mask::visible(std::int64_t q, std::int64_t k) const {
  const std::span<const Band> bands = near({q, q + 1}, {k, k + 1});
  return std::any_of(bands.begin(), bands.end(), [&](const Band& band) {
    return band.q.begin <= q && q < band.q.end && band.k.begin <= k && k < band.k.end &&
           band.lo <= k - q && k - q <= band.hi;
  });
}

std::int64_t Mask::area(const Runs& q, const Runs& k) const {
  std::int64_t area = 0;
  for (const Run& q_run : q) {
    for (const Run& k_run : k) {
      for (const Band& band : near(q_run.span(), k_run.span())) {
        area = add(area, area_of(band, q_run, k_run));
      }
    }
  }
  return area;
}

std::int64_t Mask::area() const {
  std::int64_t area = 0;
  for (const Band& band : bands_) area = add(area, area_of(band, run_of(band.q), run_of(band.k)));
  return area;
}

bool Mask::shows_all() const {
  return static_cast<__int128>(q_len_) * kv_len_ == area();
}

bool Mask::empty(const Runs& q, const Runs& k) const {
  for (const Run& q_run : q) {
    for (const Run& k_run : k) {
      for (const Band& band : near(q_run.span(), k_run.span())) {
        if (area_of(band, q_run, k_run) > 0) return false;
      }
    }
  }
  return true;
}

// Each near band is cut to the range; the keys of the tight rest are those that are seen.
std::vector<Interval> Mask::keys_of(Interval q_range) const {
  std::vector<Interval> keys;
  for (const Band& band : near(q_range, {0, kv_len_})) {
    const Band part = tight({intersect(band.q, q_range), band.k, band.lo, band.hi});
    if (!part.empty()) keys.push_back(part.k);
  }
  return united(std::move(keys));
}

std::vector<Interval> Mask::queries_of(Interval k_range) const {
  std::vector<Interval> queries;
  for (const Band& band : near({0, q_len_}, k_range)) {
    const Band seeing = tight({band.q, intersect(band.k, k_range), band.lo, band.hi});
    if (!seeing.empty()) queries.push_back(seeing.q);
  }
  return united(std::move(queries));
}

Mask intersect(const Mask& a, const Mask& b) {
  if (a.q_len_ != b.q_len_ || a.kv_len_ != b.kv_len_) {
    fail<InvalidArgument>("mask: {} x {} and {} x {} given; equal lengths are required", a.q_len_,
                          a.kv_len_, b.q_len_, b.kv_len_);
  }
  std::vector<Band> common;
  for (const Band& band : a.bands_) {
    for (const Band& other : b.near(band.q, band.k)) {
      const Band both = intersect(band, other);
      if (!both.empty()) common.push_back(both);
    }
  }
  return {a.q_len_, a.kv_len_, std::move(common)};
}

Mask joined_mask(std::span<const Mask> masks) {
  ARMILLARY_CHECK(!masks.empty());
  if (masks.size() == 1) return masks.front();
  std::vector<Band> bands;
  std::int64_t begin = 0;
  for (const Mask& mask : masks) {
    ARMILLARY_CHECK(mask.q_len() == mask.kv_len());
    // Queries and keys move alike, so distances stay.
    const auto moved = [begin](Interval range) {
      return Interval{range.begin + begin, range.end + begin};
    };
    for (const Band& band : mask.bands()) {
      bands.push_back({moved(band.q), moved(band.k), band.lo, band.hi});
    }
    begin += mask.q_len();
  }
  return {begin, begin, std::move(bands)};
}

}  // namespace armillary::plan
