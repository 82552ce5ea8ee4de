// The conformance suite on processes: with whole messages, with messages that travel in pieces, and
// on a group made by split(). Tests of other worlds than all processes run on the first of them,
// while the others wait for the outcome.
#include "armillary/comm/mpi.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

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

int processes() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"}) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  return 1;
}

int own_process() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "MPI_LOCALRANKID"}) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  return 0;
}

namespace {

Launcher mpi(const std::string& name, MpiOptions options) {
  const auto run = [options](int world, const Body& body) {
    MpiOptions own = options;
    own.world = world;
    run_processes(body, own);
  };
  return {.name = name,
          .run = run,
          .most_ranks = processes(),
          .fewer_run_too = true,
          .start_s = 4,
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
  return {.name = "split",
          .run = run,
          .lane_0 = MpiOptions().lanes,
          .most_ranks = processes() - 1,
          .fewer_run_too = true,
          .start_s = 4};
}

std::vector<Launcher> launchers() {
  std::vector<Launcher> all = {mpi("whole", {}), mpi("pieces", {.piece_bytes = 70001}),
                               mpi("large_pieces", {.piece_bytes = 101})};
  if (processes() > 2) all.push_back(mpi_split());
  return all;
}

INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorConformance, testing::ValuesIn(launchers()),
                         testing::PrintToStringParamName());

/// Expects every process to throw `text`.
void expect_refusal(const MpiOptions& options, const std::string& text) {
  EXPECT_THAT([&] { run_mpi_rank([](Communicator&) {}, options); },
              testing::ThrowsMessage<InvalidArgument>(text));
}

TEST(MpiProcesses, RefuseOptionsThatDiffer) {
  if (processes() < 2) GTEST_SKIP() << "needs 2 ranks";
  const int last = all_processes()->world() - 1;
  expect_refusal({.lanes = all_processes()->rank() == last ? 3 : 4},
                 fmt::format("run_mpi_rank: rank 0 has 4 lanes and pieces of 1048576 bytes, rank "
                             "{} has 3 and 1048576; equal options are required",
                             last));
}

TEST(MpiProcesses, RefuseOptionsOutOfRange) {
  expect_refusal({.lanes = 0}, "run_mpi_rank: 0 lanes; at least 1 is required");
  expect_refusal({.world = -1}, "run_mpi_rank: world -1; at least 1, or 0 for all, is required");
  expect_refusal(
      {.world = 1000},
      fmt::format("run_mpi_rank: world 1000 of {} processes; as many are required", processes()));
  expect_refusal({.timeout_s = 0},
                 "run_mpi_rank: timeout 0 s; more than 0 and at most 1e9 s is required");
  expect_refusal({.helper_interval_s = 1},
                 "run_mpi_rank: helper interval 1 s; in (0, 0.5] is required");
  expect_refusal({.piece_bytes = 0}, "run_mpi_rank: pieces of 0 bytes; 1 to 2^30 are required");
}

TEST(MpiProcesses, RefuseMessagesOfTooManyPieces) {
  if (processes() < 2) GTEST_SKIP() << "needs 2 ranks";
  const auto body = [](Communicator& comm) {
    std::vector<std::byte> bytes(3 * 1024 * 1024 + 1);
    const Strided part = whole(std::span(bytes));
    EXPECT_THAT(
        [&] {
          comm.isend(1 - comm.rank(), 0, {&part, 1});
        },
        testing::ThrowsMessage<InvalidArgument>(
            "mpi: a message of 3145729 bytes; at most 1024 pieces of 3072 bytes are required"));
    barrier(comm);
  };
  run_processes(body, {.world = 2, .piece_bytes = 3});
}

// Small messages leave their sender before a receiver asks. They end with the group, and do not
// reach the next one.
TEST(MpiProcesses, ForgetMessagesThatNobodyReceives) {
  if (processes() < 2) GTEST_SKIP() << "needs 2 ranks";
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto body = [&](Communicator& comm) {
      const Strided part = whole(std::span(&repeat, 1));
      if (comm.rank() == 0) {
        for (int lane = 0; lane < 3; ++lane) comm.wait(comm.isend(1, lane, {&part, 1}));
      } else {
        int came = -1;
        const Strided to = whole(std::span(&came, 1));
        comm.wait(comm.irecv(0, 1, {&to, 1}));
        EXPECT_EQ(came, repeat);
      }
    };
    run_processes(body, {.world = 2});
  }
}

TEST(MpiAbsent, RefusesToRun) {
  if (mpi_available()) GTEST_SKIP() << "MPI is there";
  expect_refusal({},
                 "mpi: this build has no MPI; one that found Open MPI or MPICH is required "
                 "(./dev setup mpi)");
}

}  // namespace
}  // namespace armillary::comm
