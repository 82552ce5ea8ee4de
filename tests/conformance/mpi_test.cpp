// The conformance suite on processes: with whole messages, with messages that travel in pieces, and
// on a group made by split(). Tests of other worlds than all processes run on the first of them,
// while the others wait for the outcome.
#include "armillary/comm/mpi.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/mpi.h"

namespace armillary::comm {
namespace {

/// run_mpi_rank() for a test: throws CommError also on processes that take no part, if the group
/// failed.
void run_processes(const Body& body, const MpiOptions& options) {
  std::exception_ptr error;
  try {
    run_mpi_rank(body, options);
  } catch (...) {
    error = std::current_exception();
  }
  Communicator& all = *all_processes();
  std::int64_t failed = error ? 1 : 0;
  std::vector<std::int64_t> outcomes(all.world());
  all_gather(all, array(std::span(&failed, 1)), array(std::span(outcomes)));
  if (error) std::rethrow_exception(error);
  if (std::ranges::count(outcomes, 1) > 0) fail<CommError>("a group of other processes failed");
}

/// Processes that mpirun started, as its environment says: tests are listed before MPI is used.
int processes() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"}) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  return 1;
}

Launcher mpi(const std::string& name, MpiOptions options) {
  const auto run = [options](int world, const Body& body) {
    MpiOptions own = options;
    own.world = world;
    run_processes(body, own);
  };
  return {.name = name,
          .run = run,
          .most_ranks = processes(),
          .huge_messages = options.piece_bytes == MpiOptions().piece_bytes};
}

/// A group made by split(), of all but the last rank of the first group.
Launcher mpi_split() {
  const auto run = [](int world, const Body& body) {
    const auto on_part = [&](Communicator& comm) {
      const auto group = comm.split(comm.rank() < world ? 0 : -1, 0);
      if (group) body(*group);
    };
    run_processes(on_part, {.world = world + 1});
  };
  return {.name = "split", .run = run, .lane_0 = MpiOptions().lanes, .most_ranks = processes() - 1};
}

std::vector<Launcher> launchers() {
  std::vector<Launcher> all = {mpi("whole", {}), mpi("pieces", {.piece_bytes = 70001})};
  if (processes() > 2) all.push_back(mpi_split());
  return all;
}

INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorConformance, testing::ValuesIn(launchers()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace armillary::comm
