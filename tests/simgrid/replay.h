// replay.h: a plan run by SimGrid, the second opinion on predict/sim/engine.h.
//
// Two things are taken from sim/: the seconds of compute ops (predict/sim/cost.h) and the channels
// of a route (predict/sim/topology.h). Waits come from plan/program/hazards.h. Lanes, batches,
// messages and the sharing of links are those of SimGrid: a lane is an actor, a message that both
// ends have posted is an actor that sleeps for the latency and then sends, and links are shared by
// SimGrid's own solver.
#pragma once

#include <optional>

#include "armillary/plan/plan.h"
#include "armillary/predict/sim/cluster.h"

namespace armillary::second {

/// Seconds until the last op of the plan ends; nothing if this build has no SimGrid. Runs in a
/// process of its own, for SimGrid runs once in a process. A plan that is stuck, or a process that
/// fails, gives -1. Requires a cluster without `slowdown`, limits of flows, bursts and half-duplex
/// links.
std::optional<double> simgrid_end_s(const plan::Plan& plan, const sim::Cluster& cluster);

}  // namespace armillary::second
