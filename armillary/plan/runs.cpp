// Closed forms on strided runs. Pairs within a range of distances are the difference of two counts
// "k - q <= d". Such a count is a part of a rectangle below a diagonal: a sum of triangles if the
// runs are contiguous or have one step, and floor sums (Euclid's algorithm) for two different
// steps.
#include "armillary/plan/runs.h"

#include <optional>
#include <utility>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"

namespace armillary::plan {
namespace {

using Wide = __int128;  // 2^56 tokens have up to 2^112 pairs.

/// Number of (i, j) with 0 <= i < rows, 0 <= j < columns and j - i <= d: the part of a rectangle
/// below a diagonal, computed as a triangle less the parts of it outside of the rectangle.
Wide below_diagonal(std::int64_t rows, std::int64_t columns, std::int64_t d) {
  const auto triangle = [](std::int64_t side) -> Wide {
    return side > 0 ? static_cast<Wide>(side) * (side + 1) >> 1 : 0;
  };
  return triangle(d + rows) - triangle(d) - triangle(d + rows - columns) + triangle(d - columns);
}

/// Sum of floor((a * i + b) / m) over 0 <= i < n, for a, b >= 0 and m > 0: Euclid's algorithm on
/// (a, m).
Wide floor_sum(Wide n, Wide m, Wide a, Wide b) {
  Wide sum = 0;
  while (n > 0) {
    sum += n * (n - 1) / 2 * (a / m) + n * (b / m);
    a %= m;
    b %= m;
    const Wide top = a * n + b;
    n = top / m;
    b = top % m;
    std::swap(a, m);
  }
  return sum;
}

/// Number of (i, j) with 0 <= i < q.count, 0 <= j < k.count and j * k.step - i * q.step <= d.
Wide below_slope(const Run& q, const Run& k, std::int64_t d) {
  // Rows before `some` have no j, and rows from `all` on have every j; the rows between are summed.
  const std::int64_t some = std::clamp<std::int64_t>(ceil_div(-d, q.step), 0, q.count);
  const std::int64_t all = std::clamp(ceil_div((k.count - 1) * k.step - d, q.step), some, q.count);
  const Wide part = floor_sum(all - some, k.step, q.step, d + some * q.step) + (all - some);
  return part + static_cast<Wide>(q.count - all) * k.count;
}

/// Pairs with k - q <= d for runs of the same step. Two stripes that are e = j - i apart see each
/// other completely up to some e, in part for the next two e, and not at all after that.
Wide pairs_of_one_step(const Run& q, const Run& k, std::int64_t d) {
  d -= k.begin - q.begin;
  const auto stripes = [&](std::int64_t e) { return below_diagonal(q.count, k.count, e); };
  const std::int64_t whole = floor_div(d - (k.width - 1), q.step);
  Wide pairs = stripes(whole) * q.width * k.width;
  for (const std::int64_t e : {whole + 1, whole + 2}) {
    pairs += (stripes(e) - stripes(e - 1)) * below_diagonal(q.width, k.width, d - e * q.step);
  }
  return pairs;
}

/// Pairs with k - q <= d for any two runs: a sum over the offsets between two positions within
/// their stripes, each counted as often as it occurs.
Wide pairs_of_two_steps(const Run& q, const Run& k, std::int64_t d) {
  d -= k.begin - q.begin;
  Wide pairs = 0;
  for (std::int64_t offset = 1 - q.width; offset < k.width; ++offset) {
    const std::int64_t times = std::min({q.width, k.width, offset + q.width, k.width - offset});
    pairs += times * below_slope(q, k, d - offset);
  }
  return pairs;
}

/// A contiguous run as stripes of the given step that touch, and the rest.
struct Restriped {
  Run stripes;
  Run rest;
};

/// Gives a contiguous run the step of another run, so that both can be counted by stripes.
Restriped restripe(const Run& run, std::int64_t step) {
  const std::int64_t count = run.tokens() / step;
  return {{.begin = run.begin, .count = count, .step = step, .width = step},
          {.begin = run.begin + count * step,
           .count = 1,
           .step = step,
           .width = run.tokens() - count * step}};
}

/// Pairs with k - q <= d: chooses the cheapest closed form for the two runs.
Wide pairs_up_to(const Run& q, const Run& k, std::int64_t d) {
  if (q.contiguous() && k.contiguous()) {
    return below_diagonal(q.tokens(), k.tokens(), d - (k.begin - q.begin));
  }
  if (q.contiguous()) {
    const auto [stripes, rest] = restripe(q, k.step);
    return pairs_of_one_step(stripes, k, d) + pairs_of_one_step(rest, k, d);
  }
  if (k.contiguous()) {
    const auto [stripes, rest] = restripe(k, q.step);
    return pairs_of_one_step(q, stripes, d) + pairs_of_one_step(q, rest, d);
  }
  return q.step == k.step ? pairs_of_one_step(q, k, d) : pairs_of_two_steps(q, k, d);
}

/// The stripes [first, end) of a run, canonical.
Run stripes_of(const Run& run, std::int64_t first, std::int64_t end) {
  const Run part = {run.begin + first * run.step, end - first, run.step, run.width};
  return part.contiguous() ? run_of(part.span()) : part;
}

/// Both as one run, if `next` continues `run`.
std::optional<Run> join(const Run& run, const Run& next) {
  if (run.contiguous() && next.contiguous()) {
    if (run.last() + 1 != next.begin) return std::nullopt;
    return run_of({run.begin, next.last() + 1});
  }
  // A contiguous run may be the first or the last stripe of the other one.
  const std::int64_t step = run.contiguous() ? next.step : run.step;
  const auto striped = [&](const Run& part) {
    return part.contiguous() ? Run{part.begin, 1, step, part.tokens()} : part;
  };
  const Run a = striped(run);
  const Run b = striped(next);
  if (a.step != b.step || a.width != b.width || a.begin + a.count * a.step != b.begin) {
    return std::nullopt;
  }
  return Run{a.begin, a.count + b.count, a.step, a.width};
}

}  // namespace

std::int64_t tokens(const Runs& runs) {
  std::int64_t sum = 0;
  for (const Run& run : runs) sum += run.tokens();
  return sum;
}

std::vector<std::int64_t> positions(const Runs& runs) {
  std::vector<std::int64_t> list;
  list.reserve(static_cast<std::size_t>(tokens(runs)));
  for (const Run& run : runs) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      for (std::int64_t w = 0; w < run.width; ++w) list.push_back(run.begin + i * run.step + w);
    }
  }
  return list;
}

Runs clip(const Run& run, Interval range) {
  const Interval inside = intersect(run.span(), range);
  if (inside.empty()) return {};
  if (run.contiguous()) return {run_of(inside)};

  // From position `skip` of stripe `first` to before position `keep` of stripe `last`.
  std::int64_t first = (inside.begin - run.begin) / run.step;
  std::int64_t skip = (inside.begin - run.begin) % run.step;
  std::int64_t last = (inside.end - 1 - run.begin) / run.step;
  const std::int64_t keep = std::min((inside.end - 1 - run.begin) % run.step + 1, run.width);
  if (skip >= run.width) {
    ++first;
    skip = 0;
  }
  const auto at = [&](std::int64_t stripe, std::int64_t offset) {
    return run.begin + stripe * run.step + offset;
  };
  if (first > last) return {};
  if (first == last) return {run_of({at(first, skip), at(last, keep)})};

  // A part of the first stripe, whole stripes, and a part of the last stripe; each may be missing.
  Runs parts;
  if (skip > 0) {
    parts.push_back(run_of({at(first, skip), at(first, run.width)}));
    ++first;
  }
  const std::int64_t end = keep < run.width ? last : last + 1;
  if (first < end) parts.push_back(stripes_of(run, first, end));
  if (end == last) parts.push_back(run_of({at(last, 0), at(last, keep)}));
  return parts;
}

Runs clip(const Runs& runs, Interval range) {
  Runs parts;
  for (const Run& run : runs) {
    const Runs part = clip(run, range);
    parts.insert(parts.end(), part.begin(), part.end());
  }
  return parts;
}

Runs join(const Runs& runs) {
  Runs joined;
  for (Run next : runs) {
    // A joined run may in turn continue the one before it: a tail and a head make a whole stripe.
    while (!joined.empty()) {
      const std::optional<Run> both = join(joined.back(), next);
      if (!both) break;
      next = *both;
      joined.pop_back();
    }
    joined.push_back(next);
  }
  return joined;
}

// The distances of the rule are cut to those that occur, which also keeps the arithmetic in range.
std::int64_t count_pairs(const Run& q_run, const Run& k_run, Distance distance) {
  const std::int64_t nearest = k_run.begin - q_run.last();
  const std::int64_t farthest = k_run.last() - q_run.begin;
  const std::int64_t lo = std::max(distance.lo, nearest);
  const std::int64_t hi = std::min(distance.hi, farthest);
  if (lo > hi) return 0;
  Wide pairs = hi == farthest ? static_cast<Wide>(q_run.tokens()) * k_run.tokens()
                              : pairs_up_to(q_run, k_run, hi);
  if (lo > nearest) pairs -= pairs_up_to(q_run, k_run, lo - 1);
  if (pairs > std::numeric_limits<std::int64_t>::max()) {
    fail<InvalidArgument>(
        "count_pairs: {} queries x {} keys see 2^63 pairs or more; fewer are required",
        q_run.tokens(), k_run.tokens());
  }
  return static_cast<std::int64_t>(pairs);
}

// A position is in both runs if it has distance 0 from itself.
std::int64_t count_common(const Runs& a, const Runs& b) {
  std::int64_t common = 0;
  for (const Run& a_run : a) {
    for (const Run& b_run : b) common += count_pairs(a_run, b_run, {.lo = 0, .hi = 0});
  }
  return common;
}

}  // namespace armillary::plan
