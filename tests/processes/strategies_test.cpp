// strategies_test.cpp: every strategy of the registry over processes: this program starts itself
// under mpirun and compares the bits with those of threads.
#include "tests/processes/strategies.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/mpi.h"
#include "armillary/host/launch/launch_folder.h"
#include "armillary/host/launch/mpirun.h"
#include "armillary/host/launch/supervisor.h"
#include "armillary/plan/testing/every_strategy.h"
#include "tests/equivalence/cases.h"

namespace armillary {
namespace {

/// Every strategy that solves it, on one problem whose shards differ in size.
std::vector<equivalence::Case> cases_on(int world) {
  const plan::Problem any{.world = world, .heads = 6, .kv_heads = 3};
  std::vector<equivalence::Case> cases;
  for (const std::string& strategy : plan::every_strategy(any)) {
    cases.push_back({strategy, "zigzag", "documents:20,0,31,50,within=causal", world, 101, 101, 6,
                     3, at::kFloat});
  }
  return cases;
}

/// Whether all rows of this rank are those of the whole, bit for bit.
bool equal_rows(const at::Tensor& mine, const at::Tensor& whole, const plan::Runs& runs) {
  const at::Tensor rows = at::tensor(plan::positions(runs), at::kLong);
  return at::equal(mine, whole.index_select(1, rows).to(mine.scalar_type()));
}

int count_different(const std::vector<equivalence::Case>& cases, comm::Communicator& comm) {
  int different = 0;
  for (const equivalence::Case& c : cases) {
    const equivalence::Drawn drawn = equivalence::draw(c, 7);
    const kernel::Results mine = equivalence::on_rank(c, drawn, comm);
    const kernel::Results all = equivalence::spread(c, drawn);
    const plan::Shards owned = plan::shards(plan::parse_layout(c.layout), drawn.mask, c.world);
    const plan::Runs& q = owned.q[comm.rank()];
    const plan::Runs& kv = owned.kv[comm.rank()];
    const bool same =
        equal_rows(mine.out_BSHE, all.out_BSHE, q) && equal_rows(mine.lse_BSH, all.lse_BSH, q) &&
        equal_rows(mine.dq_BSHD, all.dq_BSHD, q) && equal_rows(mine.dk_BSGD, all.dk_BSGD, kv) &&
        equal_rows(mine.dv_BSGE, all.dv_BSGE, kv);
    if (same) continue;
    ++different;
    fmt::print("{}: rank {} of {} has other bits than on threads\n", to_string(c), comm.rank(),
               comm.world());
  }
  return different;
}

class StrategiesOverProcesses : public testing::TestWithParam<int> {};

TEST_P(StrategiesOverProcesses, GiveTheBitsOfThreads) {
  if (!comm::mpi_available()) GTEST_SKIP() << "[SKIP] no MPI";
  const std::string mpirun = launch::mpi_launcher();
  const launch::LaunchFolder folder;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  ChildCommand command = launch::mpi_command(mpirun, launch::family_of(mpirun), GetParam(),
                                             {self, "--strategies"}, folder.path());
  command.takes_input = false;
  const auto failed = launch::supervise(std::span(&command, 1), {.prefix = false});
  EXPECT_TRUE(failed.empty()) << launch::describe(failed[0]);
}

INSTANTIATE_TEST_SUITE_P(Worlds, StrategiesOverProcesses, testing::Values(4, 6),
                         testing::PrintToStringParamName());

}  // namespace

int run_every_strategy() {
  int different = 0;
  try {
    comm::run_mpi_rank([&](comm::Communicator& comm) {
      at::set_num_threads(1);
      const std::vector<equivalence::Case> cases = cases_on(comm.world());
      different = count_different(cases, comm);
      if (comm.rank() == 0)
        fmt::print("{} strategies on {} processes\n", cases.size(), comm.world());
    });
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return different == 0 ? 0 : 1;
}

}  // namespace armillary
