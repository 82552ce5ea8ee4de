// published_run.h: attention as the programs of the literature run it, on a described cluster.
//
// Plans of this project are pruned: nothing moves for nobody. The programs that were measured move
// every block to every rank whatever the mask, and only skip the kernels that would see nothing. So
// the plan is made for a full mask, and its compute ops are costed under the real one:
//
//   Problem, full mask --Planner, lower--> Plan --its mask := the real one--> simulate --> seconds
#pragma once

#include <optional>
#include <vector>

#include "armillary/lab/validate/constants.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/cost/attention_time.h"
#include "armillary/predict/sim/cost.h"
#include "armillary/predict/sim/timeline.h"

namespace armillary::validate {

/// Costs of compute ops in programs that attend by a library's kernel and add partial results
/// afterwards. A call with an edge of the mask in it runs at the causal rate as a whole.
class PublishedCosts final : public sim::CostModel {
 public:
  PublishedCosts(const Constants& constants, const sim::DeviceSpec& device,
                 const plan::Problem& problem);
  bool needs_edges() const override { return false; }
  double seconds(const sim::OpWork& work) const override;

 private:
  sim::DeviceCosts kernels_;
  double sum_s_;  ///< Seconds for one element that is added.
};

/// Attention of one layer.
struct PublishedRun {
  plan::Problem problem;
  plan::Strategy strategy;
  std::vector<plan::Pass> passes;
  bool pruned = false;  ///< Moves and steps that nobody needs are left out.
  /// Device of each rank; empty: rank r on device r.
  std::vector<int> placement = {};
  std::optional<int> shown_rank = {};  ///< The rank that was measured; empty: the last to end.
};

/// One timeline for each pass. @throws InvalidArgument if the strategy cannot solve the problem, or
/// for more ranks than the cluster has devices.
std::vector<sim::Timeline> simulate(const PublishedRun& run, const Constants& constants);

/// Seconds of each step of the first pass, on the rank that was measured or the first: from the
/// start of its first op that attends to that of the next step; the last to the end of its ops that
/// attend, without the sums that wait for the last messages. Requires a rank that attends.
std::vector<double> steps_seconds(const PublishedRun& run, const Constants& constants);

/// The sum of their times, until the rank that was measured ends.
double seconds(const PublishedRun& run, const Constants& constants);

/// The same for a step around it, until the last rank ends.
cost::AttentionTime attention_time(const PublishedRun& run, const Constants& constants);

}  // namespace armillary::validate
