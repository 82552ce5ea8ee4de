// mpi.h: the suite as one of several processes that mpirun started.
#pragma once

#include <string_view>

#include "armillary/comm/communicator.h"
#include "armillary/comm/mpi.h"
#include "tests/conformance/conformance.h"

namespace armillary::comm {

/// The group of all processes, which stays when groups of tests fail, so that processes can tell
/// each other how a test went. Null unless the program was started with --mpi.
Communicator*& all_processes();

/// run_mpi_rank() for a test: throws CommError also on processes that take no part, if the group
/// failed.
void run_processes(const Body& body, const MpiOptions& options);

/// Processes that mpirun started, as its environment says: tests are listed before MPI is used.
int processes();
/// The number of this process among them.
int own_process();

/// Runs a rank that fails (faults.h), of a program started with --fault=KIND, and returns its exit
/// code.
int run_fault(std::string_view kind);

}  // namespace armillary::comm
