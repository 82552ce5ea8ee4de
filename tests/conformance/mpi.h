// mpi.h: the suite as one of several processes that mpirun started.
#pragma once

#include <string_view>

#include "armillary/comm/communicator.h"

namespace armillary::comm {

/// The group of all processes, which stays when groups of tests fail, so that processes can tell
/// each other how a test went. Null unless the program was started with --mpi.
Communicator*& all_processes();

/// Runs a rank that fails, of a program started with --fault=KIND, and returns its exit code:
///
///   throw   rank 1 throws        abort   another thread of rank 1 aborts while it computes
///   exit    rank 1 exits with 3  leave   rank 1 ends well, while others wait for it
///   kill    SIGKILL ends rank 1  stop    SIGSTOP stops rank 1
int run_fault(std::string_view kind);

}  // namespace armillary::comm
