// Costs of plans: maxima and sums of plan::traffic over ranks.
#include "cli/costs.h"

#include <algorithm>

namespace armillary::cli {

Costs costs(const plan::Plan& plan) {
  Costs costs;
  for (const plan::RankProgram& program : plan.ranks) {
    const plan::Traffic one = plan::traffic(plan.problem, plan.blocks, program);
    costs.most.sent_bytes = std::max(costs.most.sent_bytes, one.sent_bytes);
    costs.most.received_bytes = std::max(costs.most.received_bytes, one.received_bytes);
    costs.most.peak_slot_bytes = std::max(costs.most.peak_slot_bytes, one.peak_slot_bytes);
    costs.most.visible_pairs = std::max(costs.most.visible_pairs, one.visible_pairs);
    costs.most.steps = std::max(costs.most.steps, one.steps);
    costs.sum.sent_bytes += one.sent_bytes;
    costs.sum.visible_pairs += one.visible_pairs;
    costs.pairs.push_back(static_cast<double>(one.visible_pairs));
  }
  return costs;
}

std::optional<double> over_bound(const Costs& forward, plan::ForwardBound& bound) {
  // The mean of sent bytes equals that of received bytes, which the bound is about.
  const double least = bound.bytes(forward.pairs);
  if (least <= 0) return std::nullopt;
  return static_cast<double>(forward.sum.sent_bytes) / static_cast<double>(forward.pairs.size()) /
         least;
}

}  // namespace armillary::cli
