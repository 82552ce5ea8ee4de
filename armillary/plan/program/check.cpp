// check.cpp: the rules, one after the other. Each takes for granted what the ones before have
// proved, so the first that finds a fault ends the check.
#include "armillary/plan/program/check.h"

namespace armillary::plan {

std::optional<std::vector<Action>> check(const World& world, Diagnostics& diagnostics,
                                         const OpRule& rule) {
  check_well_formed(world, diagnostics, rule);
  if (!diagnostics.empty()) return std::nullopt;
  check_zero_copy(world, diagnostics);
  if (!diagnostics.empty()) return std::nullopt;
  const std::vector<MatchedMessage> messages = match_messages(world, diagnostics);
  const std::vector<JointAction> joints = match_joint(world, diagnostics);
  if (!diagnostics.empty()) return std::nullopt;
  std::vector<Action> actions = order_actions(world, messages, diagnostics, joints);
  if (!diagnostics.empty()) return std::nullopt;
  return actions;
}

}  // namespace armillary::plan
