// costs.h: what a plan costs, for tables.
#pragma once

#include "armillary/plan/plan.h"

namespace armillary::cli {

/// Of the rank that has most of each, and of all ranks together.
struct Costs {
  plan::Traffic most;
  plan::Traffic sum;  ///< sent_bytes and visible_pairs only.
};
Costs costs(const plan::Plan& plan);

}  // namespace armillary::cli
