// allocation_test.cpp: a warm step of attention allocates nothing. Calls of operator new and of
// torch's allocator are counted on every thread of the test.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/plan/testing/every_strategy.h"
#include "armillary/runtime/dtypes.h"
#include "armillary/runtime/executor.h"
#include "armillary/runtime/program_cache.h"
#include "tests/sanitized.h"

namespace {

thread_local std::int64_t allocations = 0;

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // they have an allocator of their own

// All others end in these, operator new too.
extern "C" {
// NOLINTBEGIN(readability-identifier-naming,bugprone-reserved-identifier): glibc's names
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);
// NOLINTEND(readability-identifier-naming,bugprone-reserved-identifier)

void* malloc(std::size_t bytes) {
  ++allocations;
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  ++allocations;
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  ++allocations;
  return __libc_realloc(memory, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  ++allocations;
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  *memory = memalign(alignment, bytes);
  return *memory == nullptr ? 12 : 0;  // ENOMEM
}
}
#endif

namespace armillary::runtime {
namespace {

using plan::Tensor;

/// Memory for some of what goes in or comes out of a program, by tile.
class ProgramTiles {
 public:
  ProgramTiles(const CompiledProgram& compiled, const std::vector<int>& role) {
    for (const int t : role) {
      const plan::Tile& tile = compiled.program.tiles[t];
      const at::ScalarType dtype = scalar_type(dtype_of(compiled.problem, tile));
      tensors_.emplace_back(tile.tensor, at::randn(compiled.shapes[t]).to(dtype));
    }
  }
  auto begin() const { return tensors_.begin(); }
  auto end() const { return tensors_.end(); }

 private:
  std::vector<std::pair<Tensor, at::Tensor>> tensors_;
};

std::vector<int> without(std::vector<int> role, const std::vector<int>& other) {
  std::erase_if(role, [&](int tile) { return std::ranges::count(other, tile) > 0; });
  return role;
}

/// The caller's side of one rank.
class Caller {
 public:
  Caller(const CompiledAttention& programs, comm::Communicator& comm, ExecutionOptions options)
      : comm_(comm),
        options_(std::move(options)),
        forward_(programs.forward, comm, options_),
        backward_(programs.backward, comm, options_),
        inputs_(*programs.forward, programs.forward->program.inputs),
        outputs_(*programs.forward, programs.forward->program.outputs),
        saved_(*programs.forward,
               without(without(programs.forward->program.saved, programs.forward->program.inputs),
                       programs.forward->program.outputs)),
        upstream_(*programs.backward, programs.backward->program.inputs),
        grads_(*programs.backward, programs.backward->program.outputs) {}

  void step() {
    forward_.restart(comm_, options_);
    for (const auto& [tensor, memory] : outputs_) forward_.place_output(tensor, memory);
    for (const auto& [tensor, memory] : saved_) forward_.place_saved(tensor, memory);
    for (const auto& [tensor, value] : inputs_) forward_.feed(tensor, value);
    forward_.finish();
    backward_.restart(comm_, options_);
    for (const auto& [tensor, memory] : grads_) backward_.place_output(tensor, memory);
    for (const Tensor tensor : {Tensor::Q, Tensor::K, Tensor::V, Tensor::Out, Tensor::Lse}) {
      backward_.feed(tensor, forward_.saved(tensor));
    }
    for (const auto& [tensor, value] : upstream_) backward_.feed(tensor, value);
    backward_.finish();
  }

 private:
  comm::Communicator& comm_;
  ExecutionOptions options_;
  Execution forward_;
  Execution backward_;
  ProgramTiles inputs_;
  ProgramTiles outputs_;
  ProgramTiles saved_;
  ProgramTiles upstream_;
  ProgramTiles grads_;
};

/// Allocations of a warm step on the rank that allocates most. The least of several steps counts: a
/// pool of messages still grows when more of them are in flight than ever before.
std::int64_t allocations_of_a_step(const plan::Problem& problem, const std::string& strategy,
                                   const ExecutionOptions& options) {
  std::int64_t most = 0;
  std::mutex mutex;
  comm::run_ranks(problem.world, [&](comm::Communicator& comm) {
    Caller caller(
        *compile_cached(problem, plan::parse_strategy(strategy), comm.rank(), kernel::cpu_kernel()),
        comm, options);
    for (int warm_up = 0; warm_up < 5; ++warm_up) caller.step();
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (int step = 0; step < 5; ++step) {
      const std::int64_t before = allocations;
      caller.step();
      least = std::min(least, allocations - before);
    }
    const std::lock_guard lock(mutex);
    most = std::max(most, least);
  });
  return most;
}

plan::Problem problem_of(int world, plan::Dtype dtype, plan::TransferDtype transfer_dtype) {
  return {.world = world,
          .batch = 2,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 16,
          .value_dim = 16,
          .dtype = dtype,
          .mask = plan::parse_mask("causal", {200, 200}),
          .layout = plan::parse_layout("zigzag"),
          .transfer_dtype = transfer_dtype};
}

TEST(Allocation, TheCounterCounts) {
  if (kSanitized) GTEST_SKIP() << "[SKIP] a sanitizer's allocator";
  const std::int64_t before = allocations;
  const at::Tensor x = at::empty({3});
  EXPECT_GT(allocations, before);
}

TEST(Allocation, AWarmStepOfAnyStrategyAllocatesNothing) {
  if (kSanitized) GTEST_SKIP() << "[SKIP] a sanitizer's allocator";
  for (const int world : {1, 2, 4}) {
    for (const auto& [dtype, transfer_dtype] :
         {std::pair(plan::Dtype::F32, plan::TransferDtype::Accumulator),
          std::pair(plan::Dtype::Bf16, plan::TransferDtype::Input)}) {
      const plan::Problem problem = problem_of(world, dtype, transfer_dtype);
      for (const std::string& strategy : plan::every_strategy(problem)) {
        EXPECT_EQ(allocations_of_a_step(problem, strategy, {.score = {0.25}}), 0)
            << strategy << " on " << world << " ranks";
      }
    }
  }
}

TEST(Allocation, NorDoFeatures) {
  if (kSanitized) GTEST_SKIP() << "[SKIP] a sanitizer's allocator";
  const plan::Problem problem = problem_of(2, plan::Dtype::F32, plan::TransferDtype::Accumulator);
  const kernel::Score score{.scale = 0.25,
                            .softcap = 20.0,
                            .alibi_slopes_H = at::tensor({0.1f, 0.2f, 0.3f, 0.4f}),
                            .dropout = {.p = 0.1, .seed = 3}};
  EXPECT_EQ(allocations_of_a_step(problem, "ring", {.score = score}), 0);
}

}  // namespace
}  // namespace armillary::runtime
