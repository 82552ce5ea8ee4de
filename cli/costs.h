// costs.h: costs of a plan over all ranks, for tables. Nothing is run: the numbers are counted in
// the programs.
#pragma once

#include <optional>
#include <vector>

#include "armillary/plan/lower_bound.h"
#include "armillary/plan/plan.h"

namespace armillary::cli {

/// Costs of one plan: the largest of each cost on any rank, and sums over all ranks.
struct Costs {
  plan::Traffic most;         ///< Each field from the rank that has most of it.
  plan::Traffic sum;          ///< sent_bytes and visible_pairs only.
  std::vector<double> pairs;  ///< visible_pairs of every rank.
};

/// Counts the costs of a plan of any pass; sizes include the batch. Cost: O(ops * views) of all
/// ranks.
Costs costs(const plan::Plan& plan);

/// Bytes sent in a forward pass, as the mean over ranks, divided by the least that any strategy
/// must receive whose ranks have the same shares of the work: 1.00 cannot be improved. Nothing if
/// that least is 0. `bound` keeps results, so one object serves many plans of a problem.
std::optional<double> over_bound(const Costs& forward, plan::ForwardBound& bound);

}  // namespace armillary::cli
