// strategies_test.cpp: every strategy on GPUs, through autograd, over NCCL. This program starts
// itself as the ranks, one process each. Ranks may share a GPU. Without one, the tests are skipped.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "armillary/comm/c10d.h"
#include "armillary/comm/collectives.h"
#include "armillary/comm/nccl.h"
#include "armillary/kernel/testing/naive_attention.h"
#include "armillary/plan/layout.h"
#include "armillary/runtime/rank.h"
#include "armillary/runtime/stream_device.h"
#include "tests/conformance_c10d/processes.h"
#include "tests/equivalence/cases.h"
#include "tests/gpu/rank.h"
#include "tests/seed.h"
#include "tests/tolerance.h"

namespace armillary {
namespace {

using equivalence::Case;

/// The whole of `required` with the rows of this rank replaced by those that it computed.
at::Tensor with_rows(const at::Tensor& required, const plan::Runs& runs, const at::Tensor& mine) {
  const at::Tensor rows = at::tensor(plan::positions(runs), at::kLong);
  return required.index_copy(1, rows, mine.to(required.scalar_type()));
}

/// Errors of this rank's rows, and of what all ranks compute together, against one device.
equivalence::LargestErrors errors_of(const Case& c, std::uint64_t seed, comm::Communicator& comm) {
  const equivalence::Drawn drawn = equivalence::draw(c, seed);
  const kernel::Results mine = equivalence::on_rank(c, drawn, comm);
  const kernel::Results required = kernel::naive_attention(
      drawn.whole, drawn.mask, drawn.features.score, drawn.features.sinks_H);
  const plan::Shards owned = plan::shards(plan::parse_layout(c.layout), drawn.mask, c.world);
  const plan::Runs& q = owned.q[comm.rank()];
  const plan::Runs& kv = owned.kv[comm.rank()];
  const auto error_of = [](const at::Tensor& part, const at::Tensor& whole,
                           const plan::Runs& runs) {
    return kernel::relative_error(with_rows(whole, runs, part), whole);
  };
  // The gradient of the sinks is the sum over ranks.
  at::Tensor dsinks_H = mine.dsinks_H.to(at::kDouble).contiguous();
  comm::all_reduce_sum(comm, std::span(dsinks_H.mutable_data_ptr<double>(),
                                       static_cast<std::size_t>(dsinks_H.numel())));
  return {.out = error_of(mine.out_BSHE, required.out_BSHE, q),
          .lse = error_of(mine.lse_BSH, required.lse_BSH, q),
          .dq = error_of(mine.dq_BSHD, required.dq_BSHD, q),
          .dk = error_of(mine.dk_BSGD, required.dk_BSGD, kv),
          .dv = error_of(mine.dv_BSGE, required.dv_BSGE, kv),
          .dsinks = kernel::relative_error(dsinks_H, required.dsinks_H),
          .max_logit = kernel::relative_error(mine.max_logit_H, required.max_logit_H)};
}

class StrategiesOnGpus : public testing::TestWithParam<int> {};

TEST_P(StrategiesOnGpus, EqualOneDevice) {
  const std::string missing = comm::nccl_missing();
  if (!missing.empty()) GTEST_SKIP() << "[SKIP] " << missing;
  setenv("ARMILLARY_TEST_SEED", fmt::format("{}", test_seed()).c_str(), 1);  // of all ranks
  int rank = 0;
  for (const comm::ProcessEnd& outcome : comm::run_as_ranks(GetParam(), {}, 300)) {
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
  int wrong = 0;
  const auto body = [&](comm::Communicator& comm) {
    const auto gpus = static_cast<int>(c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount());
    const at::Device gpu(at::kCUDA, static_cast<c10::DeviceIndex>(place.rank % gpus));
    runtime::Rank::of(comm).use(runtime::stream_device(gpu));
    const auto begin = std::chrono::steady_clock::now();
    std::uint64_t number = test_seed();
    const std::vector<Case> cases =
        equivalence::drawn_cases({comm.world()}, number, test_all() ? 400 : 40);
    for (const Case& c : cases) {
      const equivalence::LargestErrors errors = errors_of(c, ++number, comm);
      if (errors.worst() <= (c.dtype == at::kDouble ? kFp64Bound : kFp32Bound)) continue;
      ++wrong;
      fmt::print("{}: rank {} of {} errs: {}\n", to_string(c), comm.rank(), comm.world(),
                 to_string(errors));
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
  return wrong == 0 ? 0 : 1;
}

}  // namespace armillary
