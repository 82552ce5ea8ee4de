// shared_choice.h: `auto` in the place of a strategy, for a group: rank 0 asks the tuner, and all
// ranks take its choice.
//
//   rank 0   text, problem --tune::choose--> choice --broadcast--> every rank
//
// A rank must not ask by itself: the tuner prefers answers that were measured, these lie in the
// cache of the host where they were measured, and ranks of two hosts would choose differently.
#pragma once

#include <functional>
#include <string>

#include "armillary/comm/communicator.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/tune/automatic.h"

namespace armillary::attention {

/// Asks for a choice; called on rank 0 alone.
using Choose = std::function<tune::AutomaticChoice()>;

/// The choice of rank 0 on every rank: strategy, line and is_new. Collective. Cost: two broadcasts.
/// @throws on every rank what `choose` threw on rank 0: InvalidArgument or IoError, else Error.
tune::AutomaticChoice choose_together(comm::Communicator& comm, const Choose& choose);

/// The same for tune::choose(). Every process remembers it, so tune::choose() gives it there too.
/// All ranks ask for the same text and problem.
tune::AutomaticChoice choose_together(comm::Communicator& comm, const std::string& text,
                                      const plan::Problem& problem);

}  // namespace armillary::attention
