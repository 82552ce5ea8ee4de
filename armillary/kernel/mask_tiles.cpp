// Cuts runs into strips, finds the mask tiles with a visible pair, and lists the visible keys of
// one.
//
// The number of visible pairs of a mask tile has a closed form (Mask::area): 0 is hidden, the whole
// rectangle is whole, anything between is mixed. Only mixed tiles look at single rows.
#include "armillary/kernel/mask_tiles.h"

#include <algorithm>
#include <iterator>

#include "armillary/core/error.h"

namespace armillary::kernel {
namespace {

/// Appends tokens [begin, end) of `run`, counted in memory order. Whole stripes stay one run; a
/// part of a stripe becomes a run of its own.
void append_slice(const plan::Run& run, std::int64_t begin, std::int64_t end, plan::Runs& out) {
  while (begin < end) {
    const std::int64_t stripe = begin / run.width;
    const std::int64_t offset = begin % run.width;
    const std::int64_t first = run.begin + stripe * run.step + offset;
    // Whole stripes if the range begins with one and has at least two, else the rest of a stripe.
    const std::int64_t stripes = (end - begin) / run.width;
    if (offset == 0 && stripes > 1) {
      out.push_back({.begin = first, .count = stripes, .step = run.step, .width = run.width});
      begin += stripes * run.width;
    } else {
      const std::int64_t count = std::min(end - begin, run.width - offset);
      out.push_back(plan::run_of({first, first + count}));
      begin += count;
    }
  }
}

/// The smallest range that contains every position of `runs`.
plan::Interval hull(const plan::Runs& runs) {
  plan::Interval hull = runs.front().span();
  for (const plan::Run& run : runs) {
    hull = {std::min(hull.begin, run.begin), std::max(hull.end, run.last() + 1)};
  }
  return hull;
}

std::int64_t size(const Strip& strip) {
  return strip.rows.end - strip.rows.begin;
}

}  // namespace

std::vector<Strip> cut(const plan::Runs& runs, std::int64_t limit) {
  ARMILLARY_CHECK(limit >= 1);
  std::vector<Strip> strips;
  std::int64_t row = 0;
  for (const plan::Run& run : join(runs)) {
    // A run begins a new strip unless the last strip is less than half full.
    bool begins_strip = strips.empty() || 2 * size(strips.back()) >= limit;
    for (std::int64_t begin = 0; begin < run.tokens();) {
      if (begins_strip || size(strips.back()) == limit) {
        strips.push_back({.rows = {row, row}, .runs = {}});
        begins_strip = false;
      }
      Strip& strip = strips.back();
      const std::int64_t count = std::min(run.tokens() - begin, limit - size(strip));
      append_slice(run, begin, begin + count, strip.runs);
      begin += count;
      row += count;
      strip.rows.end = row;
    }
  }
  return strips;
}

MaskTiles find_mask_tiles(const plan::Mask& mask, const plan::Runs& q_runs,
                          const plan::Runs& k_runs, MaskTileLimits limits) {
  MaskTiles mask_tiles;
  if (q_runs.empty() || k_runs.empty() || mask.empty(q_runs, k_runs)) {
    return mask_tiles;
  }
  // Strips of both sides, then the area of each pair of strips.
  mask_tiles.q = cut(q_runs, limits.q_rows);
  mask_tiles.k = cut(k_runs, limits.k_rows);
  for (std::size_t q = 0; q < mask_tiles.q.size(); ++q) {
    if (mask.empty(mask_tiles.q[q].runs, k_runs)) {
      continue;
    }
    for (std::size_t k = 0; k < mask_tiles.k.size(); ++k) {
      const std::int64_t area = mask.area(mask_tiles.q[q].runs, mask_tiles.k[k].runs);
      if (area > 0) {
        const bool whole = area == size(mask_tiles.q[q]) * size(mask_tiles.k[k]);
        mask_tiles.visible.push_back({.q = q, .k = k, .whole = whole});
      }
    }
  }
  return mask_tiles;
}

std::vector<VisibleKeys> visible_keys(const plan::Mask& mask, const Strip& q, const Strip& k) {
  std::vector<VisibleKeys> visible;
  const std::vector<std::int64_t> q_positions = positions(q.runs);
  const std::vector<std::int64_t> k_positions = positions(k.runs);
  // Bands that are near the tile: a mask of many documents has many that are not.
  const plan::Interval q_hull = hull(q.runs);
  const plan::Interval k_hull = hull(k.runs);
  const auto near = [&](const plan::Band& band) {
    return !intersect(band.q, q_hull).empty() && !intersect(band.k, k_hull).empty();
  };
  std::vector<plan::Band> bands;
  std::copy_if(mask.bands().begin(), mask.bands().end(), std::back_inserter(bands), near);
  // Appends the keys that one query row sees through one band.
  const auto add = [&](std::size_t q_row, const plan::Band& band) {
    const std::int64_t first = std::max(band.k.begin, q_positions[q_row] + band.lo);
    const std::int64_t last = std::min(band.k.end - 1, q_positions[q_row] + band.hi);
    // Positions ascend within a run, so the query sees one range of its rows.
    auto run_begin = k_positions.begin();
    for (const plan::Run& run : k.runs) {
      const auto run_end = run_begin + run.tokens();
      const auto begin = std::lower_bound(run_begin, run_end, first);
      const auto end = std::upper_bound(begin, run_end, last);
      if (begin != end) {
        visible.push_back({.q_row = static_cast<std::int64_t>(q_row),
                           .k_rows = {begin - k_positions.begin(), end - k_positions.begin()}});
      }
      run_begin = run_end;
    }
  };
  for (std::size_t q_row = 0; q_row < q_positions.size(); ++q_row) {
    for (const plan::Band& band : bands) {
      if (band.q.begin <= q_positions[q_row] && q_positions[q_row] < band.q.end) add(q_row, band);
    }
  }
  return visible;
}

}  // namespace armillary::kernel
