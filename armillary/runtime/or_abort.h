// or_abort.h: a failing rank aborts its group.
//
// Without the abort its peers would wait for its messages until their timeout; with it they leave
// within a second and throw the first reason (comm/communicator.h).
#pragma once

#include <exception>

#include "armillary/comm/communicator.h"

namespace armillary::runtime {

/// Returns action(). If it throws, aborts the group with the text of the exception, then rethrows.
/// Only exceptions derived from std::exception abort.
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
