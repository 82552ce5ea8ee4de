// mutants.h: relayouts that are wrong in one move, to test their proof: the mistakes that the
// author of a cache could make. Changes of one op alone are those of program/mutate.h.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/plan/relayout/relayout_program.h"

namespace armillary::plan::relayout {

enum class RelayoutMutation : std::uint8_t {
  MoveLeftOut,    ///< A message, at both ends, or a copy.
  MoveTwice,      ///< It is done twice in a row.
  ValuesLeftOut,  ///< A message moves K without V.
  HeadLeftOut,    ///< The last head does not move.
  OtherLayer,     ///< The move shows the same part of the layer behind it.
  MoveEarly,      ///< It comes a layer too early.
};
std::string_view to_string(RelayoutMutation mutation);

struct RelayoutMutant {
  RelayoutMutation mutation;
  Transfer transfer;  ///< The one that is wrong.
  std::vector<RankProgram> ranks;
};
/// `move early: layer 1, part 2 of rank 0 for rank 3`.
std::string to_string(const RelayoutMutant& mutant);

/// Every mutant of a relayout, one after the other; none of them is one.
void for_each_mutant(const Relayout& relayout,
                     const std::function<void(const RelayoutMutant& mutant)>& visit);

}  // namespace armillary::plan::relayout
