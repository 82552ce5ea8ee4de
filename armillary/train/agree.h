// agree.h: ranks that must all go on or all throw: texts that one rank has and all need, and work
// that may fail on one rank alone, such as reading a file.
#pragma once

#include <functional>
#include <string>

#include "armillary/comm/communicator.h"

namespace armillary::train {

/// The text of rank `root`, on every rank. Collective. Cost: two broadcasts.
std::string text_of_rank(comm::Communicator& comm, std::string text, int root);

/// Returns when all ranks know what to throw: the first that throws ends the group. Collective.
void meet_before_throwing(comm::Communicator& comm);

/// Runs `action` on every rank; it must not communicate. Returns if it threw on none. Otherwise
/// every rank throws the error of the first rank that has one, with its class if it is
/// InvalidArgument or IoError, else as Error; the text begins with `rank R: ` unless all ranks have
/// the same. Collective. Cost: one all_gather of 16 bytes a rank.
void run_together(comm::Communicator& comm, const std::function<void()>& action);

}  // namespace armillary::train
