// lower_bound.h: what no strategy can go below.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "armillary/plan/problem.h"
#include "armillary/plan/reach.h"

namespace armillary::plan {

/// Bytes that a rank must receive on average in the forward pass, whatever the strategy: in bytes
/// of the input dtype, for this mask and these shards (the problem's layout), and for ranks that
/// attend to so many pairs each. Proof and how far it is from the truth: docs/notes/lower_bound.md.
///
/// It holds where a rank owns Q, K and V of its tokens in all heads and must end with Out of these;
/// a pair of a query head is attended to by a rank that has its rows of Q, K and V, and whoever
/// attends to pairs of a query that it does not own sends a row of Out. Log-sum-exps are not
/// counted, nor what accumulators have more than inputs. Sent bytes have the same mean.
///
/// Not for several threads at once.
class ForwardBound {
 public:
  /// Requires as many queries as keys. Cost: O(world * kPieces) areas of the mask.
  explicit ForwardBound(const Problem& problem);

  /// `full mask`: in one KV head a rank attends to a rectangle at most. `any mask`: to no more
  /// pairs than the tokens with most have.
  std::string_view name() const { return full_ ? "full mask" : "any mask"; }

  /// Mean over ranks; rank r attends to pairs[r], counted as Traffic::visible_pairs.
  /// Requires one number for every rank. Cost: some 100,000 steps for each that is new.
  double bytes(const std::vector<double>& pairs);
  /// Ranks that all have the same share.
  double bytes_of_equal_work();

 private:
  double received(Rank rank, double pairs) const;

  Problem problem_;
  bool full_ = false;
  std::vector<double> tokens_;                       ///< By rank.
  std::vector<Reach> reach_;                         ///< By rank; not with a full mask.
  std::map<std::pair<Rank, double>, double> known_;  ///< What received() gave.
};

/// ForwardBound of ranks with the same share of the work.
double forward_lower_bound(const Problem& problem);

}  // namespace armillary::plan
