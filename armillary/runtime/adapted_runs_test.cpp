// Every strategy with an adapted kernel: a library that takes no carry, no delta and few masks.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <mutex>
#include <random>

#include "armillary/comm/local.h"
#include "armillary/kernel/adapted_kernel.h"
#include "armillary/kernel/reference.h"
#include "armillary/kernel/testing/limited_attention.h"
#include "armillary/plan/testing/causal_problem.h"
#include "armillary/plan/testing/every_strategy.h"
#include "armillary/runtime/executor.h"
#include "armillary/runtime/program_cache.h"
#include "tests/sanitized.h"

namespace armillary::runtime {
namespace {

using plan::Tensor;

/// Kernels of two libraries. Static, because they must outlive the cached programs.
const kernel::Kernel& library(bool causal) {
  static const kernel::LimitedAttention full_only({});
  static const kernel::LimitedAttention flash({.causal = true, .window = true, .varlen = true});
  static const kernel::AdaptedKernel kernels[] = {kernel::AdaptedKernel(full_only),
                                                  kernel::AdaptedKernel(flash)};
  return kernels[causal ? 1 : 0];
}

at::Tensor random_like(const CompiledProgram& compiled, int tile) {
  const plan::Tile& of = compiled.program.tiles[tile];
  at::Generator generator =
      at::detail::createCPUGenerator(31 * of.tensor.number() + compiled.program.rank);
  return at::randn(compiled.shapes[tile], generator, at::TensorOptions(at::kDouble));
}

/// Out, dQ, dK, dV of all ranks.
std::vector<at::Tensor> results_of(const plan::Problem& problem, const std::string& strategy,
                                   const kernel::Kernel& kernel) {
  std::vector<std::vector<at::Tensor>> of_rank(problem.world);
  comm::run_ranks(problem.world, [&](comm::Communicator& comm) {
    const auto programs =
        compile_cached(problem, plan::parse_strategy(strategy), comm.rank(), kernel);
    Execution forward(programs->forward, comm, {.score = {0.35}});
    for (const int tile : programs->forward->program.inputs) {
      forward.feed(programs->forward->program.tiles[tile].tensor,
                   random_like(*programs->forward, tile));
    }
    forward.finish();
    Execution backward(programs->backward, comm, {.score = {0.35}});
    for (const Tensor tensor : {Tensor::Q, Tensor::K, Tensor::V, Tensor::Out, Tensor::Lse}) {
      backward.feed(tensor, forward.saved(tensor));
    }
    for (const int tile : programs->backward->program.inputs) {
      if (programs->backward->program.tiles[tile].tensor != Tensor::DOut) continue;
      backward.feed(Tensor::DOut, random_like(*programs->backward, tile));
    }
    backward.finish();
    of_rank[comm.rank()] = {forward.output(Tensor::Out), backward.output(Tensor::DQ),
                            backward.output(Tensor::DK), backward.output(Tensor::DV)};
  });
  std::vector<at::Tensor> all;
  for (const auto& results : of_rank) all.insert(all.end(), results.begin(), results.end());
  return all;
}

// Half of the problems, under sanitizers a quarter, drawn by a printed seed; all with
// ARMILLARY_TEST_ALL.
TEST(AdaptedRuns, EveryStrategyRunsOnALibrarysAttention) {
  std::mt19937_64 random(test_seed());
  for (const int world : {2, 3, 4}) {
    for (const char* mask : {"causal", "window:left=9,right=2", "documents:14,31"}) {
      plan::Problem problem = plan::causal_problem(world, 45);
      problem.dtype = plan::Dtype::F64;
      problem.mask = plan::parse_mask(mask, {45, 45});
      for (const std::string& strategy : plan::every_strategy(problem)) {
        if (!test_all() && random() % (kSanitized ? 4 : 2) != 0) continue;
        const auto required = results_of(problem, strategy, kernel::reference());
        for (const bool causal : {false, true}) {
          const auto results = results_of(problem, strategy, library(causal));
          for (std::size_t i = 0; i < results.size(); ++i) {
            ASSERT_TRUE(at::allclose(results[i], required[i], 1e-11, 1e-11))
                << strategy << " " << mask << " result " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace armillary::runtime
