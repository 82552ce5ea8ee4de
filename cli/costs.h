// costs.h: what a plan costs, for tables.
#pragma once

#include <optional>
#include <vector>

#include "armillary/plan/lower_bound.h"
#include "armillary/plan/plan.h"

namespace armillary::cli {

/// Of the rank that has most of each, and of all ranks together.
struct Costs {
  plan::Traffic most;
  plan::Traffic sum;          ///< sent_bytes and visible_pairs only.
  std::vector<double> pairs;  ///< visible_pairs of every rank.
};
Costs costs(const plan::Plan& plan);

/// Mean sent in a forward pass over the least that ranks with its shares of the work can receive.
/// None where that is nothing.
std::optional<double> over_bound(const Costs& forward, plan::ForwardBound& bound);

}  // namespace armillary::cli
