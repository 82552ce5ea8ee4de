// mpi.cpp: the functions of mpi.h in builds without MPI, in the place of mpi/. Callers need no
// #ifdef, and the error says how to get a build that has it.
#include "armillary/comm/mpi.h"

#include "armillary/core/error.h"

namespace armillary::comm {

bool mpi_available() {
  return false;
}

std::string mpi_version() {
  return "";
}

void run_mpi_rank(const std::function<void(Communicator&)>& /*body*/,
                  const MpiOptions& /*options*/) {
  fail<InvalidArgument>(
      "mpi: this build has no MPI; one that found Open MPI or MPICH is required (./dev setup mpi)");
}

}  // namespace armillary::comm
