// The bound f(x, y) on pairs and the search for the fewest rows and columns. Three levels, from the
// inside out: best_with() finds the best x for one y and one price by bisection (f is concave in
// x); most_value() finds the best y by branch and bound; least_received() finds the best price by
// walking down the lower hull of (pairs, received). Notation and proof: lower_bound.md.
#include "armillary/plan/reach.h"

#include <algorithm>
#include <cmath>
#include <queue>

namespace armillary::plan {
namespace {

/// A node of branch and bound: the numbers of columns from `first` to `last`.
struct ColumnRange {
  double first = 0;
  double last = 0;
  double most = 0;  ///< Upper bound on the value with any number of columns in the range.
  bool operator<(const ColumnRange& other) const { return most < other.most; }
};

}  // namespace

Reach::Reach(const Mask& mask, const std::vector<Kink>& q_kinks, const std::vector<Kink>& kv_kinks,
             const Owned& own, int group)
    : own_pairs_(static_cast<double>(mask.area(own.q, own.kv)) * group),
      rows_(static_cast<double>(mask.q_len() - tokens(own.q)) * group),
      columns_(static_cast<double>(mask.kv_len() - tokens(own.kv))),
      group_(group),
      of_rows_(foreign_degrees(mask, MaskSide::Queries, q_kinks, own.q, own.kv)),
      of_columns_(foreign_degrees(mask, MaskSide::Keys, kv_kinks, own.kv, own.q)) {}

// Degrees count tokens of both sides. A query token has `group` rows, so x rows are x / group
// tokens and every pair of tokens counts `group` times.
double Reach::pairs(double x, double y) const {
  const double tokens = x / group_;
  const double foreign =
      std::min(of_rows_.to_foreign.of_top(tokens, y), of_columns_.to_foreign.of_top(y, tokens));
  return own_pairs_ +
         group_ * (of_rows_.to_own.of_top(tokens) + of_columns_.to_own.of_top(y) + foreign);
}

Reach::Choice Reach::best_with(double y, double price, double cap) const {
  const auto at = [&](double x) { return std::min(pairs(x, y), cap); };
  // Bisection: another row is worth its price for x below the answer, and not from there on.
  double least = 0;
  double most = rows_;
  while (least < most) {
    const double middle = std::floor((least + most) / 2);
    if (price * (at(middle + 1) - at(middle)) > 1) {
      least = middle + 1;
    } else {
      most = middle;
    }
  }
  return {at(least), least + y};
}

// Branch and bound over the number of columns. Fewer columns than the last of a range allow no more
// pairs, and save one received column each: this bounds the value of the whole range by the value
// with its last number of columns.
Reach::Most Reach::most_value(double price, double cap, double tolerance) const {
  const auto value = [&](const Choice& choice) { return price * choice.pairs - choice.received; };
  Choice best = best_with(0, price, cap);
  std::priority_queue<ColumnRange> ranges;
  const auto add = [&](double first, double last) {
    const Choice choice = best_with(last, price, cap);
    if (value(choice) > value(best)) best = choice;
    ranges.push({first, last, value(choice) + last - first});
  };
  if (columns_ > 0) add(1, columns_);
  while (!ranges.empty() && ranges.top().most > value(best) + tolerance) {
    const ColumnRange range = ranges.top();
    ranges.pop();
    if (range.first == range.last) continue;  // its bound is its value, known already
    const double middle = std::floor((range.first + range.last) / 2);
    add(range.first, middle);
    ranges.push({middle + 1, range.last, range.most - (middle + 1 - range.first)});
  }
  const double rest = ranges.empty() ? value(best) : ranges.top().most;
  return {std::max(rest, value(best)), best};
}

// Every price gives a valid bound; this finds one that is nearly the best. It keeps two choices on
// the lower hull of (pairs, received), one with fewer pairs than the mean of the planes and one
// with more. The price is the slope between them. If some choice lies below that line, it replaces
// one of the two; otherwise the hull is found. A rough tolerance comes first, a fine one at the
// end.
double Reach::least_received(double pairs, double planes) const {
  constexpr double kRough = 0.02;
  constexpr double kFine = 0.002;
  constexpr int kMostPrices = 60;
  const double missing = pairs - planes * own_pairs_;
  if (missing <= 0) return 0;
  const double cap = missing + own_pairs_;
  Choice fewer{own_pairs_, 0};
  Choice more{std::min(this->pairs(rows_, columns_), cap), rows_ + columns_};
  double least = 0;
  double part = kRough;
  for (int i = 0; i < kMostPrices && more.pairs > fewer.pairs; ++i) {
    const double price = (more.received - fewer.received) / (more.pairs - fewer.pairs);
    const double mean = fewer.received + price * (pairs / planes - fewer.pairs);
    const double tolerance = part * mean;
    // The bound of this price, whether or not the search goes on.
    const Most most = most_value(price, cap, tolerance);
    least = std::max(least, price * pairs - planes * most.value);
    const Choice& corner = most.choice;
    const double line = price * fewer.pairs - fewer.received;
    if (price * corner.pairs - corner.received > line + tolerance) {
      (corner.pairs * planes < pairs ? fewer : more) = corner;
    } else if (part > kFine) {
      part = kFine;
    } else {
      break;
    }
  }
  return least;
}

}  // namespace armillary::plan
