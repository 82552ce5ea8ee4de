// mpi.h: the suite as one of several processes that mpirun started.
#pragma once

#include "armillary/comm/communicator.h"

namespace armillary::comm {

/// The group of all processes, which stays when groups of tests fail, so that processes can tell
/// each other how a test went. Null unless the program was started with --mpi.
Communicator*& all_processes();

}  // namespace armillary::comm
