// together.h: all ranks go on, or all throw the same error: work that may fail on one rank alone,
// such as reading a file, and texts that one rank has and all need.
//
// The first rank that throws may end the group, and others would hear of that instead of the error.
// So no rank throws before all know what to throw: they meet before.
#pragma once

#include <functional>
#include <string>

#include "armillary/comm/communicator.h"

namespace armillary::comm {

/// Returns when all ranks of the group have called it, or one of them has left: it had met the
/// others then. Collective, for ranks that all throw next. Waits are those of the communicator.
void meet(Communicator& comm);

/// Runs `action` on every rank; it must not communicate. Returns if it threw on none. Otherwise
/// every rank throws the error of the first rank that has one, with its class if that is
/// InvalidArgument, IoError or PlanError, else as Error; the text begins with `rank R: ` unless all
/// ranks have the same. Collective. Cost: one all_gather of 16 bytes a rank.
/// @throws CommError as the communicator.
void run_together(Communicator& comm, const std::function<void()>& action);

/// The text that `make` returns on rank `root`, on every rank; it is called nowhere else. Its error
/// is thrown on every rank, as by run_together() but without the rank. Collective. Cost: two
/// broadcasts.
std::string text_of_rank(Communicator& comm, int root, const std::function<std::string()>& make);

/// The same for a text that is there.
std::string text_of_rank(Communicator& comm, int root, const std::string& text);

}  // namespace armillary::comm
