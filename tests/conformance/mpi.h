// mpi.h: the suite as one of several processes that mpirun started.
#pragma once

#include <string_view>

#include "armillary/comm/communicator.h"

namespace armillary::comm {

/// The group of all processes, which stays when groups of tests fail, so that processes can tell
/// each other how a test went. Null unless the program was started with --mpi.
Communicator*& all_processes();

/// Runs a rank that fails (faults.h), of a program started with --fault=KIND, and returns its exit
/// code.
int run_fault(std::string_view kind);

}  // namespace armillary::comm
