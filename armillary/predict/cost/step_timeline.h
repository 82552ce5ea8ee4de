// step_timeline.h: the programs of a training step (plan/step) with times, overlap included.
//
// One rank is simulated: joint ops begin and end on all ranks at once, as ranks are alike but for
// their place along tp. Lanes keep their order and wait through slots (plan/program/hazards.h); all
// of them wait for an all_reduce, as a trainer does (plan/step/words.h).
//
//   compute lane   forward, backward, update: the seconds of their unit; all others take none
//   other lanes    collectives: a ring over the op's group, latency included (group.h)
//   host lane      moves of state: its bytes over DeviceSpec::host_bytes_per_s; of one memory both
//                  a read and a write
//
// Contention. Two groups share links if both cross nodes or neither does. Messages of the compute
// lane (attention, tensor parallelism) take the part of a shared link that they would take alone,
// and collectives share what is left evenly. Compute that messages slow down
// (DeviceSpec::slowdown) is not modelled.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "armillary/plan/step/step_program.h"
#include "armillary/predict/cost/step.h"
#include "armillary/predict/sim/timeline.h"

namespace armillary::cost {

/// Messages of the lanes beside compute.
enum class StepTransfer : std::uint8_t { Gathers, Sums, Moves };
inline constexpr std::size_t kStepTransfers = 3;

struct StepTimeline {
  plan::Rank rank = 0;
  double end_s = 0;
  double compute_s = 0;  ///< An op of the compute lane runs.
  /// By StepTransfer: such an op runs; and of that, while the compute lane waits.
  std::array<double, kStepTransfers> busy_s{};
  std::array<double, kStepTransfers> exposed_s{};
  std::vector<sim::OpTime> ops;  ///< By index of the op.
};

/// The cluster of a step, and the prices of its units.
struct StepMachine {
  sim::Cluster cluster;
  std::vector<UnitTime> units;  ///< By unit of the program; gathers and sums go by their bytes.
  StepRates rates = {};
};

/// One rank of a program that check_step() takes, rank r on device r.
/// @throws InvalidArgument for other numbers of units, more ranks than devices, or an op of a kind
/// that has no price. Cost: O(ops * ops in flight).
StepTimeline simulate(const plan::step::StepProgram& step, plan::Rank rank,
                      const StepMachine& machine);

/// The timelines as a trace of Chrome (core/trace_events.h): op, unit.
std::string to_trace(const plan::step::StepProgram& step,
                     const std::vector<StepTimeline>& timelines);

}  // namespace armillary::cost
