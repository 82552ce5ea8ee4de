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
