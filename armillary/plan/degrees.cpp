// Upper bounds on degrees. A side of the mask is cut into pieces, and each piece gets the largest
// degree that any of its tokens may have. The pieces are refined greedily from a priority queue:
// the piece whose bound exceeds its exact number of pairs most is halved, at a kink if there is
// one. Exact numbers of pairs are areas of the mask; the largest degree of a piece is found at its
// ends and kinks, because the degree is linear between two kinks.
#include "armillary/plan/degrees.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

namespace armillary::plan {
namespace {

constexpr std::size_t kMostBands = 1 << 10;

std::int64_t length(const Mask& mask, MaskSide side) {
  return side == MaskSide::Queries ? mask.q_len() : mask.kv_len();
}

Runs all_of(std::int64_t length) {
  return length == 0 ? Runs{} : Runs{run_of({0, length})};
}

/// Pairs of tokens of a side with tokens of the other side.
std::int64_t pairs(const Mask& mask, MaskSide side, const Runs& here, const Runs& there) {
  return side == MaskSide::Queries ? mask.area(here, there) : mask.area(there, here);
}

/// The degree of the token at position `at`.
std::int64_t pairs_of_token(const Mask& mask, MaskSide side, std::int64_t at) {
  return pairs(mask, side, {run_of({at, at + 1})},
               all_of(side == MaskSide::Queries ? mask.kv_len() : mask.q_len()));
}

/// The foreign tokens of an interval of positions: tokens that the rank does not own.
struct DegreePiece {
  Interval range;
  double tokens = 0;
  double own_pairs = 0;      ///< Their pairs with own tokens of the other side, exact.
  double own_most = 0;       ///< Upper bound on such pairs of a single token.
  double foreign_pairs = 0;  ///< Their pairs with foreign tokens of the other side, exact.
  double foreign_most = 0;   ///< Upper bound on such pairs of a single token.
};

/// Cuts one side of the mask into pieces with tight bounds.
class Cutter {
 public:
  Cutter(const Mask& mask, MaskSide side, const std::vector<Kink>& kinks, const Runs& own,
         const Runs& own_other)
      : mask_(mask),
        side_(side),
        kinks_(kinks),
        own_(own),
        own_other_(own_other),
        all_other_(all_of(side == MaskSide::Queries ? mask.kv_len() : mask.q_len())) {}

  /// At most kPieces pieces that cover the side; fewer once every bound is exact.
  std::vector<DegreePiece> pieces() {
    const Interval all{0, length(mask_, side_)};
    if (all.empty()) return {};
    const DegreePiece whole = measured(all);
    const auto less = [&](const DegreePiece& a, const DegreePiece& b) {
      return slack(whole, a) < slack(whole, b);
    };
    std::priority_queue<DegreePiece, std::vector<DegreePiece>, decltype(less)> queue(less);
    queue.push(whole);
    std::vector<DegreePiece> result;
    while (!queue.empty() && static_cast<int>(queue.size()) < kPieces) {
      const DegreePiece widest = queue.top();
      if (slack(whole, widest) <= 0) break;
      queue.pop();
      const std::int64_t at = cut(widest.range);
      queue.push(measured({widest.range.begin, at}));
      queue.push(measured({at, widest.range.end}));
    }
    for (; !queue.empty(); queue.pop()) result.push_back(queue.top());
    return result;
  }

 private:
  /// The distance of the bounds from the exact pairs, as a fraction of all pairs; 0 for one token.
  static double slack(const DegreePiece& whole, const DegreePiece& piece) {
    if (piece.range.end - piece.range.begin <= 1) return 0;
    const auto part = [](double above, double all) { return all > 0 ? above / all : 0; };
    return part(piece.own_most * piece.tokens - piece.own_pairs, whole.own_pairs) +
           part(piece.foreign_most * piece.tokens - piece.foreign_pairs, whole.foreign_pairs);
  }

  /// The first kink at or after a position.
  std::vector<Kink>::const_iterator kink_from(std::int64_t at) const {
    return std::partition_point(kinks_.begin(), kinks_.end(),
                                [&](const Kink& kink) { return kink.at < at; });
  }

  /// The position at which a piece is halved: a kink near the middle, or the middle. Requires two
  /// positions.
  std::int64_t cut(Interval range) const {
    const std::int64_t middle = range.begin + (range.end - range.begin) / 2;
    const auto next = kink_from(middle);
    if (next != kinks_.end() && next->at > range.begin && next->at < range.end) return next->at;
    if (next != kinks_.begin() && std::prev(next)->at > range.begin) return std::prev(next)->at;
    return middle;
  }

  /// The largest degree in the range, own and foreign pairs together: it is at an end or at a kink.
  double most_of_all(Interval range) const {
    if (kinks_.empty()) return std::numeric_limits<double>::infinity();
    std::int64_t most = std::max(pairs_of_token(mask_, side_, range.begin),
                                 pairs_of_token(mask_, side_, range.end - 1));
    for (auto kink = kink_from(range.begin + 1); kink != kinks_.end() && kink->at < range.end;
         ++kink) {
      most = std::max(most, kink->most);
    }
    return static_cast<double>(most);
  }

  /// A piece with its exact numbers of pairs and its bounds.
  DegreePiece measured(Interval range) const {
    // Exact pairs: all tokens of the range, less the own ones.
    const Runs here{run_of(range)};
    const Runs own = clip(own_, range);
    DegreePiece piece{.range = range,
                      .tokens = static_cast<double>(range.end - range.begin - tokens(own))};
    const std::int64_t to_own =
        pairs(mask_, side_, here, own_other_) - pairs(mask_, side_, own, own_other_);
    const std::int64_t to_all =
        pairs(mask_, side_, here, all_other_) - pairs(mask_, side_, own, all_other_);
    piece.own_pairs = static_cast<double>(to_own);
    piece.foreign_pairs = static_cast<double>(to_all - to_own);
    // Bounds: a token has at most all pairs of the piece, and at most one pair with each token of
    // the other side that some token of the range sees.
    std::int64_t count = 0;
    std::int64_t own_seen = 0;
    for (const Interval& part :
         side_ == MaskSide::Queries ? mask_.keys_of(range) : mask_.queries_of(range)) {
      count += part.end - part.begin;
      own_seen += tokens(clip(own_other_, part));
    }
    piece.own_most = std::min(piece.own_pairs, static_cast<double>(own_seen));
    piece.foreign_most =
        std::min({piece.foreign_pairs, static_cast<double>(count - own_seen), most_of_all(range)});
    return piece;
  }

  const Mask& mask_;
  MaskSide side_;
  const std::vector<Kink>& kinks_;
  const Runs& own_;
  const Runs& own_other_;
  Runs all_other_;
};

}  // namespace

// Largest degrees first, so prefix sums answer of_top().
Degrees::Degrees(std::vector<DegreeStep> steps) : steps_(std::move(steps)) {
  std::sort(steps_.begin(), steps_.end(),
            [](const DegreeStep& a, const DegreeStep& b) { return a.degree > b.degree; });
  counts_.push_back(0);
  pairs_.push_back(0);
  for (const DegreeStep& step : steps_) {
    counts_.push_back(counts_.back() + step.count);
    pairs_.push_back(pairs_.back() + step.count * step.degree);
  }
}

double Degrees::of_top(double count) const {
  const auto after = std::upper_bound(counts_.begin(), counts_.end(), count);
  if (after == counts_.end()) return pairs_.back();
  const auto step = static_cast<std::size_t>(after - counts_.begin()) - 1;
  return pairs_[step] + (count - counts_[step]) * steps_[step].degree;
}

// The steps above the cap count as the cap; those after them are the same with and without a cap.
double Degrees::of_top(double count, double cap) const {
  const auto lower = std::partition_point(steps_.begin(), steps_.end(),
                                          [&](const DegreeStep& s) { return s.degree > cap; });
  const double capped = std::min(count, counts_[static_cast<std::size_t>(lower - steps_.begin())]);
  return capped * cap + of_top(count) - of_top(capped);
}

// The degree is a sum over bands, and within a band it changes slope at four positions: at the
// begin and the end of the band, and at the two where a diagonal meets an end of the other range.
std::vector<Kink> kinks(const Mask& mask, MaskSide side) {
  const std::int64_t end = length(mask, side);
  if (mask.bands().size() > kMostBands || end == 0) return {};
  std::vector<std::int64_t> places{0};
  for (const Band& band : mask.bands()) {
    if (side == MaskSide::Queries) {
      places.insert(places.end(),
                    {band.q.begin, band.q.end, band.k.begin - band.lo, band.k.end - 1 - band.hi});
    } else {
      places.insert(places.end(),
                    {band.k.begin, band.k.end, band.q.begin + band.hi, band.q.end - 1 + band.lo});
    }
  }
  std::erase_if(places, [&](std::int64_t one) { return one < 0 || one >= end; });
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  std::vector<Kink> result;
  for (const std::int64_t at : places) {
    const std::int64_t before = at == 0 ? 0 : pairs_of_token(mask, side, at - 1);
    result.push_back({at, std::max(before, pairs_of_token(mask, side, at))});
  }
  return result;
}

// Own pairs: as few tokens with the largest degree as make the exact sum, so that the sum over all
// tokens stays exact. Foreign pairs: every token with the largest degree of its piece.
ForeignDegrees foreign_degrees(const Mask& mask, MaskSide side,
                               const std::vector<Kink>& kinks_of_side, const Runs& own,
                               const Runs& own_other) {
  std::vector<DegreeStep> to_own;
  std::vector<DegreeStep> to_foreign;
  for (const DegreePiece& piece : Cutter(mask, side, kinks_of_side, own, own_other).pieces()) {
    if (piece.own_most > 0) to_own.push_back({piece.own_most, piece.own_pairs / piece.own_most});
    if (piece.foreign_most > 0) to_foreign.push_back({piece.foreign_most, piece.tokens});
  }
  return {Degrees(std::move(to_own)), Degrees(std::move(to_foreign))};
}

}  // namespace armillary::plan
