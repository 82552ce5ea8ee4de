#include "armillary/runtime/execution_pool.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "armillary/comm/local.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/runtime/program_cache.h"

namespace armillary::runtime {
namespace {

plan::Problem masked_problem(std::int64_t tokens, const std::string& mask) {
  return {.world = 2,
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 8,
          .value_dim = 8,
          .dtype = plan::Dtype::F32,
          .mask = plan::parse_mask(mask, {tokens, tokens}),
          .layout = plan::parse_layout("contiguous")};
}

at::Tensor run_once(ExecutionPool& pool, const CompiledAttention& programs,
                    comm::Communicator& comm, std::set<const void*>& slots) {
  auto execution = pool.take(programs.forward, comm, {.score = {0.35}});
  slots.insert(execution->slots().const_data_ptr());
  for (const plan::Tensor tensor : {plan::Tensor::K, plan::Tensor::V, plan::Tensor::Q}) {
    at::Generator generator =
        at::detail::createCPUGenerator(10 * static_cast<std::uint64_t>(tensor) + comm.rank());
    execution->feed(tensor, at::randn(programs.forward->shapes[0], generator));
  }
  execution->finish();
  at::Tensor out = execution->output(plan::Tensor::Out);
  pool.give_back(std::move(execution));
  return out;
}

// Every step of packed documents has its own mask, and so its own program. Idle programs must not
// keep slots.
TEST(ExecutionPool, ProgramsTakeTurnsInTheSameSlots) {
  comm::run_ranks(2, [](comm::Communicator& comm) {
    ExecutionPool pool;
    std::set<const void*> slots;
    const auto compiled = [&](const std::string& mask) {
      return *compile_cached(masked_problem(40, mask), plan::parse_strategy("ring"), comm.rank(),
                             kernel::cpu_kernel());
    };
    const CompiledAttention full = compiled("full");
    const at::Tensor first = run_once(pool, full, comm, slots);
    const at::Tensor copy = first.clone();
    for (int length = 1; length < 10; ++length) {
      run_once(pool,
               compiled("documents:" + std::to_string(length) + "," + std::to_string(40 - length)),
               comm, slots);
    }
    EXPECT_EQ(slots.size(), 1U) << "a full mask needs the most";
    EXPECT_TRUE(at::equal(first, copy)) << "results are the caller's";
    EXPECT_TRUE(at::equal(run_once(pool, full, comm, slots), copy));
  });
}

TEST(ExecutionPool, SlotsGrowWithTheLargestProgram) {
  comm::run_ranks(2, [](comm::Communicator& comm) {
    ExecutionPool pool;
    std::set<const void*> slots;
    for (const std::int64_t tokens : {16, 64, 16}) {
      run_once(pool,
               *compile_cached(masked_problem(tokens, "full"), plan::parse_strategy("ring"),
                               comm.rank(), kernel::cpu_kernel()),
               comm, slots);
    }
    EXPECT_EQ(slots.size(), 2U);
  });
}

}  // namespace
}  // namespace armillary::runtime
