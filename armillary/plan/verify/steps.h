// steps.h: the rule `order` without a graph, for plans whose ops wait from step to step. Internal
// to verify.
#pragma once

#include <vector>

#include "armillary/plan/verify/structure.h"

namespace armillary::plan::verifier {

/// True if the steps of the ops show that the plan obeys the rule `order`: each batch waits only
/// for what can be done before any message of its step, and both ends of each message are in one
/// step. Then no waits form a cycle, on the strictest machine. False proves nothing:
/// order_actions() decides. All ranks on all cores. Requires a plan that passes the rules before
/// `order`.
bool waits_follow_steps(const Plan& plan, const std::vector<MatchedMessage>& messages);

}  // namespace armillary::plan::verifier
