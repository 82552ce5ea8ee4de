// choice_test.cpp: `auto` on ranks whose caches differ, as those of hosts do: this program starts
// itself under mpirun, and only rank 0 has an answer that was measured.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/comm/mpi.h"
#include "armillary/host/launch/launch_folder.h"
#include "armillary/host/launch/mpirun.h"
#include "armillary/host/launch/supervisor.h"
#include "armillary/predict/tune/automatic.h"
#include "armillary/predict/tune/cache.h"
#include "armillary/predict/tune/search.h"
#include "tests/processes/strategies.h"

namespace armillary {
namespace {

constexpr const char* kText = "auto:cluster=c8";

TEST(Choice, OfRank0IsTakenByRanksWithOtherCaches) {
  if (!comm::mpi_available()) GTEST_SKIP() << "[SKIP] no MPI";
  const std::string mpirun = launch::mpi_launcher();
  const launch::LaunchFolder folder;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  ChildCommand command =
      launch::mpi_command(mpirun, launch::family_of(mpirun), 2, {self, "--choice"}, folder.path());
  command.takes_input = false;
  const auto failed = launch::supervise(std::span(&command, 1), {.prefix = false});
  EXPECT_TRUE(failed.empty()) << launch::describe(failed[0]);
}

/// Leaves an answer in the cache that was measured: the slowest candidate is the fastest.
void store_measured(const plan::Problem& problem, const std::string& folder) {
  const tune::Question question{
      .problem = problem,
      .cluster = sim::load_cluster("c8"),
      .free = {.layout = false, .transfer_dtype = false, .placement = false}};
  tune::Answer answer = tune::search(question);
  answer.evaluations.front().outcome = tune::Outcome::Slower;
  std::swap(answer.evaluations.front(), answer.evaluations.back());
  answer.evaluations.front().outcome = tune::Outcome::Chosen;
  answer.evaluations.front().measured_s = 1e-3;
  tune::store(folder + "/tuned", question, answer, tune::Evidence::Measured);
}

/// One call on this rank, with a cache of its own. Whether the strategy was that of rank 0's cache.
bool takes_choice_of_rank_0(comm::Communicator& comm) {
  const std::filesystem::path cache =
      std::filesystem::temp_directory_path() / fmt::format("armillary_choice_{}", getpid());
  setenv("ARMILLARY_CACHE", cache.c_str(), 1);
  const attention::AttentionOptions options{.mask = plan::parse_mask("causal", {64, 64}),
                                            .strategy = kText};
  const plan::Problem problem{.world = comm.world(),
                              .heads = 4,
                              .kv_heads = 4,
                              .head_dim = 128,
                              .value_dim = 128,
                              .dtype = plan::Dtype::Bf16,
                              .mask = options.mask};
  if (comm.rank() == 0) store_measured(problem, cache);
  const at::Tensor x = at::ones({1, 32, 4, 128}, at::kBFloat16);
  attention::sequence_parallel_attention(x, x, x, comm, options);
  const tune::AutomaticChoice taken = tune::choose(kText, problem);
  std::filesystem::remove_all(cache);
  fmt::print("rank {}: {}\n", comm.rank(), taken.line);
  return taken.line.find("(measured, ") != std::string::npos;
}

}  // namespace

int run_choice() {
  bool same = false;
  try {
    comm::run_mpi_rank([&](comm::Communicator& comm) {
      at::set_num_threads(1);
      same = takes_choice_of_rank_0(comm);
    });
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
  }
  return same ? 0 : 1;
}

}  // namespace armillary
