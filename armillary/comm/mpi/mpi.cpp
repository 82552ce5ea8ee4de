// Checks of the options, and the group of the processes that take part.
#include "armillary/comm/mpi.h"

#include "armillary/comm/group_communicator.h"
#include "armillary/comm/mpi/group.h"
#include "armillary/comm/mpi/process.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// @throws InvalidArgument if an option is out of range, on each rank before MPI is called.
void expect_legal(const MpiOptions& options) {
  if (options.lanes < 1) {
    fail<InvalidArgument>("run_mpi_rank: {} lanes; at least 1 is required", options.lanes);
  }
  if (options.world < 0) {
    fail<InvalidArgument>("run_mpi_rank: world {}; at least 1, or 0 for all, is required",
                          options.world);
  }
  if (!(options.timeout_s > 0 && options.timeout_s <= 1e9)) {
    fail<InvalidArgument>("run_mpi_rank: timeout {} s; more than 0 and at most 1e9 s is required",
                          options.timeout_s);
  }
  if (!(options.helper_interval_s > 0 && options.helper_interval_s <= 0.5)) {
    fail<InvalidArgument>("run_mpi_rank: helper interval {} s; in (0, 0.5] is required",
                          options.helper_interval_s);
  }
  if (options.piece_bytes < 1 || options.piece_bytes > std::int64_t{1} << 30) {
    fail<InvalidArgument>("run_mpi_rank: pieces of {} bytes; 1 to 2^30 are required",
                          options.piece_bytes);
  }
}

}  // namespace

bool mpi_available() {
  return true;
}

// Open MPI adds its package after a comma, MPICH more lines.
std::string mpi_version() {
  std::string text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  return text.substr(0, text.find_first_of(",\n"));
}

void run_mpi_rank(const std::function<void(Communicator&)>& body, const MpiOptions& options) {
  expect_legal(options);
  MpiProcess& process = MpiProcess::instance(options.timeout_s);
  if (options.world > process.processes()) {
    fail<InvalidArgument>("run_mpi_rank: world {} of {}; as many are required", options.world,
                          count_of(process.processes(), "process", "processes"));
  }
  if (!process.usable()) {
    fail<CommError>(
        "run_mpi_rank: a group has failed and left messages; a new process is required");
  }
  // Processes that take no part are gone when the members are known.
  const int world = options.world > 0 ? options.world : process.processes();
  MPI_Comm const members = process.first_processes(world, options.timeout_s);
  if (members == MPI_COMM_NULL) return;

  MpiGroup group(process, members, options);
  run_in(group, options.timeout_s, options.lanes, body);
}

}  // namespace armillary::comm
