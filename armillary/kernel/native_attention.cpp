// Cuts the visible pairs of some runs into calls with simple masks.
//
// (1) Each run becomes a few sets of evenly spaced rows (EvenRows). (2) Between two sets of the
// same step a band is lo <= j - i <= hi over their row numbers i and j. (3) NativeCutter splits off
// rows that see all keys, until a rectangle, a triangle or a window remains. (4) Neighbouring calls
// over disjoint rows are joined into groups for libraries that take several calls at once.
#include "armillary/kernel/native_attention.h"

#include <algorithm>
#include <utility>

namespace armillary::kernel {
namespace {

/// Rows of a tensor with evenly spaced positions: row i of the set has position begin + i step.
struct EvenRows {
  NativeRows rows;
  std::int64_t begin = 0;  ///< position of the first row
  std::int64_t step = 1;

  /// Rows of the tensor for numbers [range.begin, range.end) of this set.
  NativeRows part(plan::Interval range) const {
    return {rows.first + range.begin * rows.step, range.end - range.begin, rows.step};
  }
  /// Numbers of the rows whose position is in `range`.
  plan::Interval within(plan::Interval range) const {
    const auto first_at = [&](std::int64_t position) {
      return position <= begin ? 0 : (position - begin + step - 1) / step;
    };
    return {std::min(first_at(range.begin), rows.count), std::min(first_at(range.end), rows.count)};
  }
};

/// Even rows of a list of runs. A striped run is cut into its stripes, or into its columns (the
/// rows with the same place in each stripe) if these are fewer.
std::vector<EvenRows> even_rows_of(const plan::Runs& runs) {
  std::vector<EvenRows> each;
  std::int64_t row = 0;
  for (const plan::Run& run : join(runs)) {
    if (run.contiguous()) {
      each.push_back({{row, run.tokens(), 1}, run.begin, 1});
    } else if (run.width <= run.count) {
      for (std::int64_t w = 0; w < run.width; ++w) {
        each.push_back({{row + w, run.count, run.width}, run.begin + w, run.step});
      }
    } else {
      for (std::int64_t i = 0; i < run.count; ++i) {
        each.push_back({{row + i * run.width, run.width, 1}, run.begin + i * run.step, 1});
      }
    }
    row += run.tokens();
  }
  return each;
}

/// floor(x / by)
std::int64_t floor_of(std::int64_t x, std::int64_t by) {
  return x / by - (x % by < 0 ? 1 : 0);
}

/// Exceeds every distance of two rows, and sums of a few such numbers do not overflow.
constexpr std::int64_t kFar = std::int64_t{1} << 58;

/// Cuts one band between even rows into native calls.
class NativeCutter {
 public:
  NativeCutter(const EvenRows& q, const EvenRows& k, const Abilities& can,
               std::vector<NativeCall>& calls)
      : q_(q), k_(k), can_(can), calls_(calls) {}

  /// Query rows i in `q` see key rows j in `k` with lo <= j - i <= hi. hi < lo means that no
  /// multiple of the step lies in the band.
  void cut(plan::Interval q, plan::Interval k, std::int64_t lo, std::int64_t hi) {
    // Rows without a visible pair are cut off.
    q = intersect(q, {k.begin - hi, k.end - lo});
    k = intersect(k, {q.begin + lo, q.end + hi});
    if (q.empty() || k.empty() || hi < lo) return;
    // Which edge of the band crosses the rectangle: hi (above), lo (below), both or none.
    const bool cuts_above = q.begin + hi < k.end - 1;
    const bool cuts_below = q.end - 1 + lo > k.begin;
    if (!cuts_above && !cuts_below) return add(q, k, NativeMask::Full, 0, false);
    if (cuts_above && k.end - hi < q.end) {  // hi hides no key from row k.end - hi on
      cut({q.begin, k.end - hi}, k, lo, hi);
      return cut({k.end - hi, q.end}, k, lo, kFar);
    }
    if (!cuts_below) return cut_triangle(q, k, hi, false);
    if (!cuts_above) {
      const std::int64_t first = k.begin - lo;  // rows before this one see all keys
      if (q.begin < first) {
        add({q.begin, first}, k, NativeMask::Full, 0, false);
        return cut({first, q.end}, k, lo, kFar);
      }
      return cut_triangle(q, k, lo, true);
    }
    // Both edges: a window.
    if (can_.window) return add(q, k, NativeMask::Window, hi - lo + 1, false);
    cut_window(q, k, lo, hi);
  }

 private:
  /// Cuts a window into groups of as many query rows as the window is wide. A group has a triangle
  /// below, a rectangle of keys that all its rows see, and a triangle above.
  void cut_window(plan::Interval q, plan::Interval k, std::int64_t lo, std::int64_t hi) {
    for (std::int64_t begin = q.begin; begin < q.end; begin += hi - lo + 1) {
      const plan::Interval rows{begin, std::min(q.end, begin + hi - lo + 1)};
      const std::int64_t middle = std::clamp(rows.end - 1 + lo, k.begin, k.end);
      const std::int64_t above = std::clamp(rows.begin + hi + 1, middle, k.end);
      cut(rows, {k.begin, middle}, lo, kFar);
      cut(rows, {middle, above}, -kFar, kFar);
      cut(rows, {above, k.end}, -kFar, hi);
    }
  }

  /// Row i sees the keys up to i + bound or, `backwards`, from i + bound on. A causal mask is
  /// aligned at the last row, so the second kind is a causal call that reads both sides backwards.
  /// Without causal masks the triangle is cut into quarters, down to single rows.
  void cut_triangle(plan::Interval q, plan::Interval k, std::int64_t bound, bool backwards) {
    if (can_.causal) return add(q, k, NativeMask::Causal, 0, backwards);
    if (q.end - q.begin == 1) return add(q, k, NativeMask::Full, 0, false);
    const std::int64_t half = (q.begin + q.end) / 2;
    const std::int64_t lo = backwards ? bound : -kFar;
    const std::int64_t hi = backwards ? kFar : bound;
    const std::int64_t shared = std::clamp(backwards ? half - 1 + lo : half + hi, k.begin, k.end);
    cut({q.begin, half}, {k.begin, shared}, lo, hi);
    cut({half, q.end}, {k.begin, shared}, lo, hi);
    cut({q.begin, half}, {shared, k.end}, lo, hi);
    cut({half, q.end}, {shared, k.end}, lo, hi);
  }

  void add(plan::Interval q, plan::Interval k, NativeMask mask, std::int64_t window,
           bool backwards) {
    NativeCall call{q_.part(q), k_.part(k), mask, window};
    if (backwards) {
      for (NativeRows* rows : {&call.q, &call.k}) {
        rows->first += (rows->count - 1) * rows->step;
        rows->step = -rows->step;
      }
    }
    calls_.push_back(call);
  }

  const EvenRows& q_;
  const EvenRows& k_;
  const Abilities& can_;
  std::vector<NativeCall>& calls_;
};

/// Cuts one band between two sets of even rows.
void cut_pair(const EvenRows& q, const EvenRows& k, const plan::Band& band, const Abilities& can,
              std::vector<NativeCall>& calls) {
  if (q.step != k.step && q.rows.count > 1 && k.rows.count > 1) {
    // Without a common step, each query row is cut alone: a single row has any step.
    for (std::int64_t i = 0; i < q.rows.count; ++i) {
      const EvenRows one{q.part({i, i + 1}), q.begin + i * q.step, k.step};
      cut_pair(one, k, band, can, calls);
    }
    return;
  }
  const std::int64_t step = k.rows.count > 1 ? k.step : q.step;
  // Positions: k - q = step (j - i) - offset. The band over positions becomes one over j - i.
  const std::int64_t offset = q.begin - k.begin;
  const std::int64_t lo =
      band.lo == plan::Distance::kAnyLo ? -kFar : -floor_of(-(band.lo + offset), step);
  const std::int64_t hi =
      band.hi == plan::Distance::kAnyHi ? kFar : floor_of(band.hi + offset, step);
  NativeCutter(q, k, can, calls).cut(q.within(band.q), k.within(band.k), lo, hi);
}

/// Whether all rows of `after` come after those of `before`, both read forwards.
bool apart(const NativeRows& before, const NativeRows& after) {
  return before.step > 0 && after.step > 0 &&
         before.first + (before.count - 1) * before.step < after.first;
}

}  // namespace

std::vector<std::vector<NativeCall>> native_calls(const Pairs& pairs, const Abilities& can) {
  // All calls, one after the other.
  std::vector<NativeCall> calls;
  const std::vector<EvenRows> k_each = even_rows_of(pairs.k_runs);
  for (const EvenRows& q : even_rows_of(pairs.q_runs)) {
    for (const EvenRows& k : k_each) {
      for (const plan::Band& band : pairs.mask->bands()) cut_pair(q, k, band, can, calls);
    }
  }
  // Groups: a call joins the one before if they have the same mask and ascending, disjoint rows.
  std::vector<std::vector<NativeCall>> together;
  for (const NativeCall& call : calls) {
    const auto joins = [&](const NativeCall& before) {
      return can.varlen && before.mask == call.mask && before.window == call.window &&
             apart(before.q, call.q) && apart(before.k, call.k);
    };
    if (together.empty() || !joins(together.back().back())) together.emplace_back();
    together.back().push_back(call);
  }
  return together;
}

}  // namespace armillary::kernel
