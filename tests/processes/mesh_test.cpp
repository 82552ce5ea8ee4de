// mesh_test.cpp: attention on one axis of a mesh beside sums over the other, on processes: this
// program starts itself as the ranks, with MPI and with c10d.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <exception>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "armillary/attention/testing/mesh_attention.h"
#include "armillary/comm/c10d.h"
#include "armillary/comm/mpi.h"
#include "armillary/host/launch/launch_folder.h"
#include "armillary/host/launch/mpirun.h"
#include "armillary/host/launch/supervisor.h"
#include "tests/conformance_c10d/processes.h"
#include "tests/processes/strategies.h"

namespace armillary {
namespace {

TEST(MeshOverProcesses, AttendsBesideSumsWithMpi) {
  if (!comm::mpi_available()) GTEST_SKIP() << "[SKIP] no MPI";
  const std::string mpirun = launch::mpi_launcher();
  const launch::LaunchFolder folder;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  ChildCommand command =
      launch::mpi_command(mpirun, launch::family_of(mpirun), 4, {self, "--mesh"}, folder.path());
  command.takes_input = false;
  const auto failed = launch::supervise(std::span(&command, 1), {.prefix = false});
  EXPECT_TRUE(failed.empty()) << launch::describe(failed[0]);
}

TEST(MeshOverProcesses, AttendsBesideSumsWithC10d) {
  for (const comm::ProcessEnd& outcome : comm::run_as_ranks(4, {"--mesh"}, 120)) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  }
}

}  // namespace

int run_mesh(const std::string& c10d_place) {
  std::string difference = "no rank";
  const auto attend = [&](comm::Communicator& comm) {
    at::set_num_threads(1);
    difference = attention::attend_beside_sums(comm, 20);
  };
  try {
    c10d_place.empty() ? comm::run_mpi_rank(attend)
                       : comm::run_c10d_rank(attend, comm::place_of(c10d_place));
  } catch (const std::exception& error) {
    difference = error.what();
  }
  if (!difference.empty()) fmt::print(stderr, "{}\n", difference);
  return difference.empty() ? 0 : 1;
}

}  // namespace armillary
