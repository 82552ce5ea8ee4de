// or_abort.h: a rank that cannot go on tells its peers, which would wait for it until a deadline.
#pragma once

#include <exception>

#include "armillary/comm/communicator.h"

namespace armillary::runtime {

/// Runs `action`; if it throws, the group is aborted with its reason before the error goes on.
template <class Action>
decltype(auto) or_abort(comm::Communicator& comm, const Action& action) {
  try {
    return action();
  } catch (const std::exception& error) {
    comm.abort(error.what());
    throw;
  }
}

}  // namespace armillary::runtime
