// mutants.h: steps that are wrong in one place, to test their proof: the mistakes that the author
// of a trainer could make.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/plan/step/step_program.h"

namespace armillary::plan::step {

enum class StepMutation : std::uint8_t {
  SumLeftOut,      ///< A sum of a gradient, the loss or the norm, on all ranks.
  SumTwice,        ///< It is done twice in a row.
  OtherAxes,       ///< It goes over other axes.
  SumEarly,        ///< It comes before the last contribution to its value.
  FreeEarly,       ///< A release comes before the last op that reads the tile, on one rank.
  FreeLeftOut,     ///< A release is left out on one rank.
  GatherLeftOut,   ///< A gather, on all ranks.
  GatherEarly,     ///< One in place comes before what it gathers is summed or updated.
  NormTwice,       ///< One rank counts a unit twice.
  NormOnAllRanks,  ///< Ranks of tp or replicas that have the same values all count them.
  UpdateLeftOut,   ///< One rank does not update a unit.
  // State on the host, each on one rank.
  MoveLeftOut,     ///< A state is not fetched, or not moved back.
  MoveBackEarly,   ///< It is moved back before its update.
  UpdateInFlight,  ///< An update comes before the move that fetches its state.
  OtherBuffer,     ///< An update takes the other buffer.
  BufferReleased,  ///< A buffer is released before its update.
};
std::string_view to_string(StepMutation mutation);

/// One wrong step.
struct StepMutant {
  StepMutation mutation;
  Rank rank = 0;  ///< The rank that is changed, or 0 for all ranks.
  int op = 0;     ///< The place of the op in that rank's program before the change.
  std::vector<RankProgram> ranks;
};
/// `sum early: rank 0 op 7, all_reduce(grad1 over r{0,1})`.
std::string to_string(const StepMutant& mutant, const StepProgram& step);

/// Every mutant of a step, one after the other; none of them is a step. Changes of one rank take
/// turns: op i is changed on rank i % world. Cost: a copy of the step for each.
void for_each_mutant(const StepProgram& step,
                     const std::function<void(const StepMutant& mutant)>& visit);
/// Their number, and one of them by its place. Cost: O(ops).
int count_mutants(const StepProgram& step);
StepMutant mutant_at(const StepProgram& step, int place);

}  // namespace armillary::plan::step
