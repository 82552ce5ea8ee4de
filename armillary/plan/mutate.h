// mutate.h: small changes that break a plan, to test the verifier (program/mutate.h).
#pragma once

#include <string>
#include <vector>

#include "armillary/plan/plan.h"
#include "armillary/plan/program/mutate.h"

namespace armillary::plan {

/// All single mutations of a plan.
std::vector<Mutation> mutations(const Plan& plan);
/// The ranks whose programs a mutation of this plan changes.
std::vector<Rank> changed_ranks(const Plan& plan, const Mutation& mutation);
/// Changes the plan in place. Requires a mutation of this plan.
void mutate(Plan& plan, const Mutation& mutation);
/// A changed copy of the plan.
Plan apply(const Plan& plan, const Mutation& mutation);
/// One line for test output: `rank 2 op 5: other peer 3`.
std::string to_string(const Mutation& mutation);

}  // namespace armillary::plan
