// lower_bound.h: what no strategy can go below.
#pragma once

#include "armillary/plan/problem.h"

namespace armillary::plan {

/// Bytes that a rank must receive on average in the forward pass, with a full mask, equal shards
/// and equal work, whatever the strategy; log-sum-exps are not counted.
///
/// A rank that computes for k whole KV groups and a rectangle of one more needs the sides of these,
/// less what it owns. The least is taken over k. With fewer ranks than query heads per KV head, a
/// ring is the best there is. A mask that hides pairs can be served with less.
/// Requires as many queries as keys: shards of unequal lengths make another problem of it.
double forward_lower_bound(const Problem& problem);

}  // namespace armillary::plan
