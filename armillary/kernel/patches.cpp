#include "armillary/kernel/patches.h"

#include <algorithm>
#include <iterator>

#include "armillary/core/error.h"

namespace armillary::kernel {
namespace {

/// Appends tokens [begin, end) of `run`, counted in memory order. A stripe that is cut through
/// becomes a run of its own.
void append_slice(const plan::Run& run, std::int64_t begin, std::int64_t end, plan::Runs& out) {
  while (begin < end) {
    const std::int64_t stripe = begin / run.width;
    const std::int64_t offset = begin % run.width;
    const std::int64_t first = run.begin + stripe * run.step + offset;
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

/// Smallest range that holds every position.
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
    bool fresh = strips.empty() || 2 * size(strips.back()) >= limit;
    for (std::int64_t begin = 0; begin < run.tokens();) {
      if (fresh || size(strips.back()) == limit) {
        strips.push_back({.rows = {row, row}, .runs = {}});
        fresh = false;
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

Patches find_patches(const plan::Mask& mask, const plan::Runs& q_runs, const plan::Runs& k_runs,
                     PatchLimits limits) {
  Patches patches;
  if (q_runs.empty() || k_runs.empty() || mask.empty(q_runs, k_runs)) {
    return patches;
  }
  patches.q = cut(q_runs, limits.q_rows);
  patches.k = cut(k_runs, limits.k_rows);
  for (std::size_t q = 0; q < patches.q.size(); ++q) {
    if (mask.empty(patches.q[q].runs, k_runs)) {
      continue;
    }
    for (std::size_t k = 0; k < patches.k.size(); ++k) {
      const std::int64_t area = mask.area(patches.q[q].runs, patches.k[k].runs);
      if (area > 0) {
        const bool whole = area == size(patches.q[q]) * size(patches.k[k]);
        patches.visible.push_back({.q = q, .k = k, .whole = whole});
      }
    }
  }
  return patches;
}

std::vector<VisibleKeys> visible_keys(const plan::Mask& mask, const Strip& q, const Strip& k) {
  std::vector<VisibleKeys> visible;
  const std::vector<std::int64_t> q_positions = positions(q.runs);
  const std::vector<std::int64_t> k_positions = positions(k.runs);
  const plan::Interval q_hull = hull(q.runs);
  const plan::Interval k_hull = hull(k.runs);
  const auto near = [&](const plan::Band& band) {
    return !intersect(band.q, q_hull).empty() && !intersect(band.k, k_hull).empty();
  };
  std::vector<plan::Band> bands;
  std::copy_if(mask.bands().begin(), mask.bands().end(), std::back_inserter(bands), near);
  const auto add = [&](std::size_t q_row, const plan::Band& band) {
    const std::int64_t first = std::max(band.k.begin, q_positions[q_row] + band.lo);
    const std::int64_t last = std::min(band.k.end - 1, q_positions[q_row] + band.hi);
    // Positions ascend within a run, so what a query sees of it is one range of rows.
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
