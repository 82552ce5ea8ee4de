// engine.h: runs the lanes of a lowered plan on a described cluster, without tensors.
//
// The machine is that of the executor (runtime/executor.h). Each rank has one in-order compute lane
// and communication lanes; an op waits for the ops that plan/program/hazards.h derives; the
// messages of one step of a lane are a batch and start together; the n-th send of a rank to another
// on a lane meets the n-th receive. Compute ops take the seconds of a CostModel. A message starts
// when both of its ends are posted (nothing is buffered), waits for the latency, and then is a flow
// that shares the channels of its route with others max-min fairly (flow_network.h). Messages of
// one batch that are alike are worked on as one: they start and end together.
//
//   Plan ---lanes----> ops, batches, waits --.
//   Cluster -Topology-> routes ---------------+--simulate--> Timeline
//   CostModel --------> seconds -------------'
//
// The result is exact for this model and deterministic: the same input gives the same bits, but for
// Timeline::event_wall_s.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "armillary/plan/passes/lower.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/sim/cost.h"
#include "armillary/predict/sim/timeline.h"
#include "armillary/predict/sim/topology.h"

namespace armillary::sim {

/// Parts of a timeline that cost memory.
struct TimelineParts {
  bool ops = false;    ///< Times of every op, and memory over time.
  bool flows = false;  ///< Every flow with its rates.
};

struct SimulateOptions {
  TimelineParts record = {};
  /// Costs of compute ops; null: DeviceCosts of the cluster's device.
  const CostModel* costs = nullptr;
  /// Device of each rank; empty: rank r on device r.
  std::vector<int> placement = {};
  /// Simulate one rank of each class of ranks that behave alike, if there are any: the result has
  /// their timelines only (Timeline::ranks). For strategies, and rank r on device r;
  /// armillary/plan/fold.md says which ranks are alike.
  bool fold = false;
  /// Called before the first event if tensors and slots of a rank need more memory than a device
  /// has; it may throw, as cost::check_fits() does. Empty: memory is not looked at.
  std::function<void()> on_too_large = {};
};

/// Simulates one pass. Plans need not be exact, but must be `well_formed` (plan/verify/verify.h).
/// @throws InvalidArgument for more ranks than devices, a placement that is none, a world of over
/// 1,024 ranks that differ with more ops than can be run in some minutes, or a dtype
/// without a kernel curve; PlanError if ops wait for ever (names the first of them on each rank),
/// or if a receive meets a send of other bytes. Cost: O(ops + flows * log), some microseconds for
/// each.
Timeline simulate(const plan::Plan& plan, const Cluster& cluster,
                  const SimulateOptions& options = {});

/// Seconds of an op of the compute lane. Several threads ask at once.
using Seconds = std::function<double(const plan::RankProgram& program, const plan::Op& op)>;

/// The same for programs in any words, whose compute ops take `seconds`; `options.costs` and
/// `options.fold` are not read. Timeline::strategy is the name of the vocabulary.
Timeline simulate(const plan::World& world, const Seconds& seconds, const Cluster& cluster,
                  const SimulateOptions& options = {});

/// The same for a strategy: programs are made and lowered rank by rank and not kept, so a world of
/// 1,024 fits in memory, and a folded one of 16,384.
Timeline simulate(const plan::Planner& planner, plan::Pass pass, const Cluster& cluster,
                  const SimulateOptions& options = {});

}  // namespace armillary::sim
