// strategies_test.cpp: every strategy on GPUs, through autograd, over NCCL. This program starts
// itself as the ranks, one process each. Ranks may share a GPU. Without one, the tests are skipped.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "armillary/comm/c10d.h"
#include "armillary/comm/collectives.h"
#include "armillary/comm/nccl.h"
#include "armillary/runtime/context.h"
#include "armillary/runtime/stream_device.h"
#include "tests/conformance_c10d/processes.h"
#include "tests/equivalence/cases.h"
#include "tests/gpu/rank.h"
#include "tests/seed.h"
#include "tests/tolerance.h"

namespace armillary {
namespace {

using equivalence::Case;

/// Cases of both grids in an order that the seed draws; one of each strategy comes first.
std::vector<Case> drawn_cases(int world, std::uint64_t seed, std::size_t count) {
  std::vector<Case> cases = equivalence::grid_cases(world);
  const std::vector<Case> features = equivalence::feature_cases(world);
  cases.insert(cases.end(), features.begin(), features.end());
  std::mt19937_64 random(seed);
  std::ranges::shuffle(cases, random);
  std::set<std::string> met;
  std::stable_partition(cases.begin(), cases.end(),
                        [&](const Case& c) { return met.insert(c.strategy).second; });
  cases.resize(std::min(cases.size(), std::max(count, met.size())));
  return cases;
}

/// Whether the difference is below the bound, relative to the largest value of the whole, or to 1,
/// the size of the inputs: a query that sees one key has a gradient of 0, which both sides miss by
/// their rounding.
bool is_close(const at::Tensor& given, const at::Tensor& required, const at::Tensor& whole,
              double bound) {
  if (given.sizes() != required.sizes()) return false;
  if (required.numel() == 0) return true;
  const double largest = whole.to(at::kDouble).nan_to_num(0, 0, 0).abs().max().item<double>();
  const double size = std::max(largest, 1.0);
  return at::allclose(given.to(at::kDouble), required.to(at::kDouble), 0, bound * size,
                      /*equal_nan=*/false);
}

bool rows_are_close(const at::Tensor& mine, const at::Tensor& whole, const plan::Runs& runs,
                    double bound) {
  const at::Tensor rows = at::tensor(plan::positions(runs), at::kLong);
  return is_close(mine, whole.index_select(1, rows), whole, bound);
}

/// Runs a case on the GPU, and on threads with the CPU's kernels. Returns the names of what
/// differs.
std::string differences(const Case& c, std::uint64_t seed, comm::Communicator& comm) {
  const equivalence::Drawn drawn = equivalence::draw(c, seed);
  kernel::Results mine = equivalence::on_rank(c, drawn, comm);
  const auto one_thread = [](comm::Communicator&) { at::set_num_threads(1); };
  const kernel::Results all = equivalence::spread(c, drawn, {}, one_thread);
  const plan::Shards owned = plan::shards(plan::parse_layout(c.layout), drawn.mask, c.world);
  const plan::Runs& q = owned.q[comm.rank()];
  const plan::Runs& kv = owned.kv[comm.rank()];
  const double bound = c.dtype == at::kDouble ? kFp64Bound : kFp32Bound;
  std::string names;
  const auto expect = [&](bool same, const char* name) {
    if (!same) names += fmt::format(" {}", name);
  };
  expect(rows_are_close(mine.out_BSHE, all.out_BSHE, q, bound), "out");
  expect(rows_are_close(mine.lse_BSH, all.lse_BSH, q, bound), "lse");
  expect(rows_are_close(mine.dq_BSHD, all.dq_BSHD, q, bound), "dq");
  expect(rows_are_close(mine.dk_BSGD, all.dk_BSGD, kv, bound), "dk");
  expect(rows_are_close(mine.dv_BSGE, all.dv_BSGE, kv, bound), "dv");
  expect(is_close(mine.max_logit_H, all.max_logit_H, all.max_logit_H, bound), "max_logit");
  // The gradient of the sinks is the sum over ranks; that of many rows, so of larger terms.
  std::vector<double> dsinks(c.heads);
  for (int h = 0; h < c.heads; ++h) dsinks[h] = mine.dsinks_H[h].item<double>();
  comm::all_reduce_sum(comm, dsinks);
  const at::Tensor sum = at::tensor(dsinks, at::kDouble);
  expect(is_close(sum, all.dsinks_H, all.dsinks_H, 10 * bound), "dsinks");
  return names;
}

class StrategiesOnGpus : public testing::TestWithParam<int> {};

TEST_P(StrategiesOnGpus, GiveTheResultsOfTheCpu) {
  const std::string missing = comm::nccl_missing();
  if (!missing.empty()) GTEST_SKIP() << "[SKIP] " << missing;
  setenv("ARMILLARY_TEST_SEED", fmt::format("{}", test_seed()).c_str(), 1);  // of all ranks
  int rank = 0;
  for (const comm::Outcome& outcome : comm::run_as_ranks(GetParam(), {}, 300)) {
    EXPECT_EQ(outcome.exit_code, 0) << "rank " << rank << ", signal " << outcome.signal << ":\n"
                                    << outcome.output;
    if (rank++ == 0) fmt::print("{}", outcome.output);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, StrategiesOnGpus, testing::Values(1, 2, 3, 4),
                         testing::PrintToStringParamName());

}  // namespace

int run_gpu_rank(const comm::C10dRendezvous& place) {
  // NCCL refuses two ranks of a host on one GPU, so each process says that it is another host.
  setenv("NCCL_HOSTID", fmt::format("process {}", place.rank).c_str(), 1);
  // To load a kernel at its first use, CUDA may wait for all that run; NCCL's wait for their peers.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  at::set_num_threads(1);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a rank that crashes has said what it met before
  int different = 0;
  const auto body = [&](comm::Communicator& comm) {
    const auto gpus = static_cast<int>(c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount());
    const at::Device gpu(at::kCUDA, static_cast<c10::DeviceIndex>(place.rank % gpus));
    runtime::Context::of(comm).use(runtime::stream_device(gpu));
    const auto begin = std::chrono::steady_clock::now();
    std::uint64_t number = test_seed();
    const std::vector<Case> cases = drawn_cases(comm.world(), number, test_all() ? 400 : 40);
    for (const Case& c : cases) {
      const std::string names = differences(c, ++number, comm);
      if (names.empty()) continue;
      ++different;
      fmt::print("{}: rank {} of {} differs from the CPU in{}\n", to_string(c), comm.rank(),
                 comm.world(), names);
    }
    fmt::print("{} problems on {} ranks, {} GPUs, {:.1f} s\n", cases.size(), comm.world(), gpus,
               std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  };
  try {
    comm::run_c10d_rank([&](comm::Communicator& host) { comm::run_on_nccl(host, body); }, place,
                        {.timeout_s = 60});
  } catch (const std::exception& error) {
    fmt::print("{}\n", error.what());
    return 1;
  }
  return different == 0 ? 0 : 1;
}

}  // namespace armillary
