// lower_bound.h: the fewest bytes that ranks must receive, whatever the strategy.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "armillary/plan/problem.h"
#include "armillary/plan/reach.h"

namespace armillary::plan {

/// Lower bound on the bytes that a rank receives on average in the forward pass. It is for the
/// problem's mask and layout (which give the shards), and for ranks that attend to given numbers of
/// pairs. Proof, and the distance of real strategies from it: armillary/plan/lower_bound.md.
///
/// Assumptions: a rank owns Q, K and V of its tokens in all heads and must end with Out of them. A
/// pair of a query head is attended to by one rank, which has its rows of Q, K and V. A rank that
/// attends to pairs of a query that it does not own sends a row of Out. Elements have the bytes of
/// the input dtype; log-sum-exps are not counted. The mean of sent bytes is the same.
///
/// Not thread-safe: bytes() keeps results it has computed.
class ForwardBound {
 public:
  /// Requires as many queries as keys. Cost: O(world * kPieces) areas of the mask.
  explicit ForwardBound(const Problem& problem);

  /// The bound in use. `full mask`: the pairs of a rank in one KV head are at most a rectangle of
  /// rows and columns. `any mask`: they are bounded by the largest degrees (reach.h).
  std::string_view name() const { return full_ ? "full mask" : "any mask"; }

  /// Mean bytes over ranks, if rank r attends to pairs[r], counted as Traffic::visible_pairs.
  /// Requires one number for every rank. Cost: some 100,000 steps for each new number.
  double bytes(const std::vector<double>& pairs);
  /// The same if all ranks attend to equally many pairs.
  double bytes_of_equal_work();

 private:
  /// Rows and columns that a rank receives at least, over all KV heads and batch entries.
  double received(Rank rank, double pairs) const;

  Problem problem_;
  bool full_ = false;
  std::vector<double> tokens_;                       ///< Tokens owned, by rank.
  std::vector<Reach> reach_;                         ///< By rank; empty with a full mask.
  std::map<std::pair<Rank, double>, double> known_;  ///< Results of received().
};

/// ForwardBound::bytes_of_equal_work for a single question.
double forward_lower_bound(const Problem& problem);

}  // namespace armillary::plan
