// Lowered programs give the results of the programs that strategies make. The tests beside
// plan/passes/ check which ops are lowered.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/testing/causal_problem.h"
#include "armillary/plan/testing/every_strategy.h"
#include "armillary/plan/verify.h"
#include "armillary/runtime/dtypes.h"
#include "armillary/runtime/executor.h"

namespace armillary::runtime {
namespace {

using plan::Tensor;

/// Outputs of all ranks for seeded inputs, after these passes of lowering.
std::vector<at::Tensor> results_of(const plan::Planner& planner, plan::Pass pass,
                                   const std::vector<plan::Lowering>& lowerings) {
  const plan::Problem& problem = planner.problem();
  std::vector<std::vector<at::Tensor>> of_rank(problem.world);
  comm::run_ranks(problem.world, [&](comm::Communicator& comm) {
    const auto compiled = compile(
        planner,
        plan::lower(problem, planner.blocks(), planner.program(pass, comm.rank()), lowerings),
        kernel::cpu_kernel());
    Execution run(compiled, comm, {.score = {0.35}, .sinks_H = at::linspace(-1, 2, 4, at::kFloat)});
    at::Generator generator = at::detail::createCPUGenerator(7 + comm.rank());
    const plan::RankProgram& program = compiled->program;
    std::vector<int> given = program.inputs;
    if (pass == plan::Pass::Backward) {
      given.insert(given.end(), program.saved.begin(), program.saved.end());
    }
    for (const int tile : given) {
      const at::Tensor values = at::randn(compiled->shapes[tile], generator);
      run.feed(program.tiles[tile].tensor,
               values.to(scalar_type(dtype_of(problem, program.tiles[tile]))));
    }
    run.finish();
    for (const int tile : program.outputs) {
      of_rank[comm.rank()].push_back(run.output(program.tiles[tile].tensor).to(at::kFloat));
    }
  });
  std::vector<at::Tensor> all;
  for (const auto& results : of_rank) all.insert(all.end(), results.begin(), results.end());
  return all;
}

TEST(Lowered, EveryPassGivesTheResultsOfThePlainProgram) {
  plan::Problem problem = plan::causal_problem(4, 24);
  for (const plan::Dtype dtype : {plan::Dtype::F32, plan::Dtype::Bf16}) {
    problem.dtype = dtype;
    const double tolerance = dtype == plan::Dtype::F32 ? 1e-5 : 2e-2;
    for (const std::string& name : plan::every_strategy(problem)) {
      const plan::Planner planner(problem, plan::parse_strategy(name));
      for (const plan::Pass pass : {plan::Pass::Forward, plan::Pass::Backward}) {
        const std::vector<at::Tensor> plain = results_of(planner, pass, {});
        for (const char* passes : {"fuse", "alias", "coalesce", "zero_copy", "all"}) {
          const auto lowered = results_of(planner, pass, plan::parse_lowerings(passes));
          ASSERT_EQ(lowered.size(), plain.size());
          for (std::size_t i = 0; i < plain.size(); ++i) {
            EXPECT_TRUE(at::allclose(lowered[i], plain[i], tolerance, tolerance))
                << name << ' ' << to_string(pass) << ' ' << passes << " result " << i;
          }
        }
      }
    }
  }
}

/// The same program, but `finish` reads copies of the partial out and lse in slots of their own.
plan::RankProgram with_copied_partial(plan::RankProgram program) {
  std::vector<plan::Op> ops;
  for (plan::Op& op : program.ops) {
    for (std::size_t v = 2; op.kind == plan::OpKind::Finish && v < 4; ++v) {
      plan::Tile tile = program.tiles[op.views[v].tile];
      program.slots.push_back({program.slots[tile.slot].bytes});
      tile.slot = static_cast<int>(program.slots.size()) - 1;
      program.tiles.push_back(tile);
      plan::Op copy{.kind = plan::OpKind::Copy, .step = op.step};
      copy.views.push_back({.tile = static_cast<int>(program.tiles.size()) - 1,
                            .heads = tile.heads,
                            .blocks = tile.blocks});
      copy.views.push_back(op.views[v]);
      op.views[v] = copy.views[0];
      ops.push_back(copy);
    }
    ops.push_back(op);
  }
  program.ops.assign(ops.begin(), ops.end());
  return program;
}

// Sinks join in `finish` only, not in a copy of the partial.
TEST(Lowered, SinksCountOnceWherePartialsAreCopied) {
  const plan::Problem problem = plan::causal_problem(1, 16);
  const plan::Planner planner(problem, plan::parse_strategy("ring"));
  const auto out_of = [&](plan::RankProgram program) {
    program = plan::lower(problem, planner.blocks(), std::move(program));
    const plan::Plan plan{.problem = problem,
                          .strategy = "ring",
                          .pass = plan::Pass::Forward,
                          .blocks = planner.blocks(),
                          .ranks = {program}};
    EXPECT_TRUE(plan::verify(plan).empty());
    const auto compiled = compile(planner, std::move(program), kernel::cpu_kernel());
    at::Tensor out;
    comm::run_ranks(1, [&](comm::Communicator& comm) {
      Execution run(compiled, comm,
                    {.score = {0.35}, .sinks_H = at::linspace(-1, 2, 4, at::kFloat)});
      at::Generator generator = at::detail::createCPUGenerator(7);
      for (const Tensor tensor : {Tensor::K, Tensor::V, Tensor::Q}) {
        const std::int64_t heads = tensor == Tensor::Q ? 4 : 2;
        run.feed(tensor, at::randn({2, 16, heads, 8}, generator));
      }
      run.finish();
      out = run.output(Tensor::Out).clone();
    });
    return out;
  };
  const plan::RankProgram program = planner.program(plan::Pass::Forward, 0);
  EXPECT_TRUE(at::allclose(out_of(with_copied_partial(program)), out_of(program), 1e-5, 1e-6));
}

}  // namespace
}  // namespace armillary::runtime
