// waves.h: the actions of a large plan run by several threads. Internal to verify.
#pragma once

#include <functional>
#include <vector>

#include "armillary/plan/verify/contents.h"
#include "armillary/plan/verify/waits.h"

namespace armillary::plan::verifier {

/// Runs one action. Returns false if it breaks a rule.
using RunAction = std::function<bool(const Action&)>;

/// Runs the actions wave by wave: those of one wave do not wait for each other. A thread has the
/// actions of neighbouring ranks, so that messages between them touch cells of that thread, and
/// runs each under the locks of the ranks whose cells it touches. `runs` has one function per
/// thread. Returns false if an action broke a rule or threw, or if the system gives no threads; the
/// actions have then run in part, and which one broke is left to a run in order on fresh contents.
bool run_in_waves(const Meaning& meaning, Contents& contents, const std::vector<Action>& actions,
                  const std::vector<RunAction>& runs);

}  // namespace armillary::plan::verifier
