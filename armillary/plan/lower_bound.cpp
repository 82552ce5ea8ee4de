// Lower bounds on received bytes, rank by rank. A full mask has a closed form: in one KV head the
// pairs of x rows and y columns are the rectangle x * y, and the best x and y are known. Other
// masks go through Reach, which bounds the pairs by degrees and searches. The proof of both is in
// armillary/plan/lower_bound.md; a "plane" here and there is one KV head of one batch entry.
#include "armillary/plan/lower_bound.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "armillary/core/error.h"
#include "armillary/plan/program/parallel_for_ranks.h"

namespace armillary::plan {
namespace {

/// One KV head of a full mask, seen from a rank that owns some tokens of the sequence.
struct Plane {
  double tokens = 0;
  double own = 0;
  double group = 1;  ///< Query heads that read the KV head.

  double all_pairs() const { return group * tokens * tokens; }
  double own_pairs() const { return group * own * own; }
  /// Rows and columns to receive for all pairs of the plane.
  double foreign() const { return (group + 1) * (tokens - own); }
};

/// Rows and columns to receive for `pairs` in one plane, if there are more own rows than columns:
/// all columns first, then rows. Each brings fewer pairs than the one before, so it is best to give
/// all planes the same share.
double received_in_each(const Plane& plane, double pairs) {
  const double rows = plane.group * plane.own;
  const double columns = std::clamp(pairs / rows, plane.own, plane.tokens);
  return columns - plane.own + std::max(0.0, pairs / columns - rows);
}

/// Foreign rows and columns of the best rectangle with so many pairs: a square, unless that leaves
/// own rows unused.
double received_for_rectangle(const Plane& plane, double pairs) {
  const double own_rows = plane.group * plane.own;
  double columns = std::clamp(std::sqrt(pairs), pairs / (plane.group * plane.tokens), plane.tokens);
  columns = std::min(columns, pairs / own_rows);  // own rows cost nothing
  return std::max(pairs / columns - own_rows, 0.0) + columns - plane.own;
}

/// Rows and columns to receive for `pairs` in all planes, if there are fewer own rows than columns.
/// Each brings more pairs than the one before, so it is best to take some planes as a whole, a
/// rectangle of one more, and only the own tokens of the others.
double received_in_few(const Plane& plane, double pairs, std::int64_t planes) {
  const auto all = static_cast<double>(planes);
  const double beyond = pairs - all * plane.own_pairs();
  const double most = plane.all_pairs() - plane.own_pairs();
  const double whole = std::clamp(std::floor(beyond / most), 0.0, all - 1);
  const double left = std::min(beyond - whole * most, most) + plane.own_pairs();
  return whole * plane.foreign() + received_for_rectangle(plane, left);
}

/// Rows and columns to receive for `pairs` in `planes` planes of a full mask.
double received_full(const Plane& plane, double pairs, std::int64_t planes) {
  const auto all = static_cast<double>(planes);
  if (pairs <= all * plane.own_pairs()) return 0;
  if (plane.own == 0) {  // without own tokens: whole planes, and one square
    const double whole = std::floor(pairs / plane.all_pairs());
    const double left = pairs - whole * plane.all_pairs();
    return whole * plane.foreign() + 2 * std::sqrt(left);
  }
  if (plane.group * plane.own > plane.tokens) return all * received_in_each(plane, pairs / all);
  return received_in_few(plane, pairs, planes);
}

bool is_full(const Mask& mask) {
  return mask == full_mask({mask.q_len(), mask.kv_len()});
}

}  // namespace

ForwardBound::ForwardBound(const Problem& problem)
    : problem_(problem), full_(is_full(problem.mask)) {
  const Mask& mask = problem.mask;
  ARMILLARY_CHECK(mask.q_len() == mask.kv_len());
  const Shards owned = shards(problem.layout, mask, problem.world);
  for (const Runs& runs : owned.q) tokens_.push_back(static_cast<double>(tokens(runs)));
  if (full_) return;
  // The kinks belong to the mask and are computed once; the degrees depend on the rank's tokens.
  const std::vector<Kink> q_kinks = kinks(mask, MaskSide::Queries);
  const std::vector<Kink> kv_kinks = kinks(mask, MaskSide::Keys);
  std::vector<std::optional<Reach>> items(problem.world);
  parallel_for_ranks(problem.world, [&](Rank rank) {
    items[rank].emplace(mask, q_kinks, kv_kinks, Reach::Owned{owned.q[rank], owned.kv[rank]},
                        problem.group_size());
  });
  for (std::optional<Reach>& reach : items) reach_.push_back(std::move(*reach));
}

double ForwardBound::received(Rank rank, double pairs) const {
  const std::int64_t planes = problem_.batch * problem_.kv_heads;
  if (!full_) return reach_[rank].least_received(pairs, static_cast<double>(planes));
  const Plane plane{.tokens = static_cast<double>(problem_.mask.q_len()),
                    .own = tokens_[rank],
                    .group = static_cast<double>(problem_.group_size())};
  return received_full(plane, pairs, planes);
}

// Threads read known_ and write their own entry of `received`; known_ grows after they are done.
double ForwardBound::bytes(const std::vector<double>& pairs) {
  ARMILLARY_CHECK(static_cast<int>(pairs.size()) == problem_.world);
  std::vector<double> received(pairs.size());
  parallel_for_ranks(problem_.world, [&](Rank rank) {
    const auto known = known_.find({rank, pairs[rank]});
    received[rank] = known == known_.end() ? this->received(rank, pairs[rank]) : known->second;
  });
  double sum = 0;
  for (Rank rank = 0; rank < problem_.world; ++rank) {
    known_[{rank, pairs[rank]}] = received[rank];
    sum += received[rank];
  }
  return sum / problem_.world * (problem_.head_dim + problem_.value_dim) *
         static_cast<double>(bytes_of(problem_.dtype));
}

double ForwardBound::bytes_of_equal_work() {
  const double all = static_cast<double>(problem_.mask.area()) *
                     static_cast<double>(problem_.batch) * problem_.heads;
  return bytes(std::vector<double>(problem_.world, all / problem_.world));
}

double forward_lower_bound(const Problem& problem) {
  return ForwardBound(problem).bytes_of_equal_work();
}

}  // namespace armillary::plan
