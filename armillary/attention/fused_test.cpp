// Which ops are fused; that results are right is what every other test of this folder holds.
#include "armillary/attention/fused.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "armillary/attention/causal_problem.h"
#include "armillary/attention/executor.h"
#include "armillary/comm/local.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/plan/verify.h"

namespace armillary::attention {
namespace {

using plan::Tensor;

/// How many ops of a pass attend at once.
int at_once(const CompiledProgram& compiled) {
  return static_cast<int>(std::count_if(compiled.results.begin(), compiled.results.end(),
                                        [](const auto& results) { return !results.empty(); }));
}

// Where a rank sees all keys in one call, and only there. It has no sums in its slots then.
TEST(Fused, AttendsAtOnceWhereOneCallSeesAllKeys) {
  struct Case {
    int world;
    std::string strategy;
    std::string layout;
    int required;
  };
  for (const Case& c : std::vector<Case>{{1, "ring", "zigzag", 1},
                                         {2, "ulysses", "zigzag", 1},
                                         {2, "ulysses", "contiguous", 1},
                                         {2, "ring", "contiguous", 0},
                                         {2, "tokenring", "zigzag", 0}}) {
    plan::Problem problem = causal_problem(c.world, 16);
    problem.layout = plan::parse_layout(c.layout);
    const plan::Strategy strategy = plan::parse_strategy(c.strategy);
    for (const plan::Dtype dtype : {plan::Dtype::F32, plan::Dtype::Bf16}) {
      problem.dtype = dtype;
      const CompiledAttention programs =
          compile_cached(problem, strategy, c.world - 1, kernel::cpu_kernel());
      EXPECT_EQ(at_once(*programs.forward), c.required) << c.strategy << ", " << c.layout;
      EXPECT_EQ(at_once(*programs.backward), c.required) << c.strategy << ", " << c.layout;
    }
  }
  const plan::Problem problem = causal_problem(1, 16);
  const auto programs =
      compile_cached(problem, plan::parse_strategy("ring"), 0, kernel::cpu_kernel());
  comm::run_ranks(1, [&](comm::Communicator& comm) {
    const Execution run(programs.backward, comm, {.score = {0.35}});
    EXPECT_EQ(run.slots().numel(), 2 * 4 * 16 * 4) << "delta alone";
  });
}

// Of a ring only what one call writes first: on rank 1 of 2, causal, zigzag, every sum.
TEST(Fused, ClearsNothingThatAKernelWritesFirst) {
  const CompiledAttention programs =
      compile_cached(causal_problem(2, 16), plan::parse_strategy("ring"), 1, kernel::cpu_kernel());
  for (const auto& compiled : {programs.forward, programs.backward}) {
    int clears = 0;
    for (std::size_t i = 0; i < compiled->program.ops.size(); ++i) {
      if (compiled->program.ops[i].kind != plan::OpKind::Clear) continue;
      ++clears;
      EXPECT_TRUE(compiled->fused[i]) << i;
    }
    EXPECT_GT(clears, 1);
  }
}

/// The program with its partial moved to tiles of their own before it is finished.
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

// A sink joins where a partial becomes the result, and in no copy of it.
TEST(Fused, SinksCountOnceWherePartialsAreCopied) {
  const plan::Problem problem = causal_problem(1, 16);
  const plan::Planner planner(problem, plan::parse_strategy("ring"));
  const auto out_of = [&](plan::RankProgram program) {
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

/// How many ops of the one rank's program attend at once after it was changed by hand.
int at_once_after(plan::Pass pass, const std::function<void(plan::RankProgram&)>& change) {
  const plan::Planner planner(causal_problem(1, 16), plan::parse_strategy("ring"));
  plan::RankProgram program = planner.program(pass, 0);
  change(program);
  return at_once(*compile(planner, std::move(program), kernel::cpu_kernel()));
}

plan::Op& first_of(plan::RankProgram& program, plan::OpKind kind) {
  return *std::find_if(program.ops.begin(), program.ops.end(),
                       [&](const plan::Op& op) { return op.kind == kind; });
}

/// A view of a new tile that is like another, in a slot of its own.
plan::View another(plan::RankProgram& program, const plan::View& view) {
  plan::Tile tile = program.tiles[view.tile];
  program.slots.push_back({program.slots[tile.slot].bytes});
  tile.slot = static_cast<int>(program.slots.size()) - 1;
  program.tiles.push_back(tile);
  return {.tile = static_cast<int>(program.tiles.size()) - 1,
          .heads = view.heads,
          .blocks = view.blocks};
}

/// Places ops before the first of a kind.
void insert_before(plan::RankProgram& program, plan::OpKind kind,
                   const std::vector<plan::Op>& added) {
  const auto place = std::find_if(program.ops.begin(), program.ops.end(),
                                  [&](const plan::Op& op) { return op.kind == kind; });
  program.ops.insert(place, added.begin(), added.end());
}

TEST(Fused, MakesASumThatIsNotWhollyOneResult) {
  using plan::OpKind;
  using enum plan::Pass;
  for (const plan::Pass pass : {Forward, Backward}) {
    EXPECT_EQ(at_once_after(pass, [](plan::RankProgram&) {}), 1);
  }
  EXPECT_EQ(at_once_after(Backward,
                          [](plan::RankProgram& program) {
                            plan::Op copy = first_of(program, OpKind::Copy);
                            copy.views[0] = another(program, copy.views[1]);
                            insert_before(program, OpKind::Copy, {copy});
                          }),
            0)
      << "a gradient that goes to two places";
  EXPECT_EQ(at_once_after(Forward,
                          [](plan::RankProgram& program) {
                            plan::Op& finish = first_of(program, OpKind::Finish);
                            finish.views[0].heads = finish.views[2].heads = {0, 2};
                          }),
            0)
      << "a result of some of the heads";
  EXPECT_EQ(at_once_after(Forward,
                          [](plan::RankProgram& program) {
                            first_of(program, OpKind::Clear).views[0].heads = {0, 2};
                          }),
            0)
      << "a sum of which some heads were there before";
  EXPECT_EQ(at_once_after(Forward,
                          [](plan::RankProgram& program) {
                            first_of(program, OpKind::Attend).views[3].heads = {0, 2};
                          }),
            0)
      << "a sum of which some heads are another's";
}

TEST(Fused, MakesASumThatIsMergedBeforeItIsFinished) {
  using plan::OpKind;
  const auto merge_first = [](plan::RankProgram& program) {
    plan::Op merge = first_of(program, OpKind::Finish);
    merge.kind = OpKind::Merge;
    std::vector<plan::Op> clears;
    for (std::size_t v = 0; v < 2; ++v) {
      merge.views[v] = another(program, merge.views[v + 2]);
      clears.push_back({.kind = OpKind::Clear, .step = first_of(program, OpKind::Clear).step});
      clears.back().views.push_back(merge.views[v]);
      first_of(program, OpKind::Finish).views[v + 2] = merge.views[v];
    }
    insert_before(program, OpKind::Attend, clears);
    insert_before(program, OpKind::Finish, {merge});
  };
  EXPECT_EQ(at_once_after(plan::Pass::Forward, merge_first), 0);
}

// What the call would write when it reads its operands, not when the gradients are copied.
TEST(Fused, MakesGradientsWhoseMemoryIsNotFreeYet) {
  using plan::OpKind;
  using enum plan::Pass;
  EXPECT_EQ(at_once_after(Backward,
                          [](plan::RankProgram& program) {
                            const int dq = first_of(program, OpKind::Copy).views[0].tile;
                            const int q = first_of(program, OpKind::AttendGrad).views[0].tile;
                            program.tiles[dq].slot = program.tiles[q].slot;
                          }),
            0)
      << "in place of what the call reads";
  EXPECT_EQ(at_once_after(Backward,
                          [](plan::RankProgram& program) {
                            const plan::Op copy = first_of(program, OpKind::Copy);
                            plan::Op recv{
                                .kind = OpKind::Recv, .lane = 1, .step = copy.step, .peer = 0};
                            recv.views.push_back(copy.views[0]);
                            insert_before(program, OpKind::Copy, {recv});
                          }),
            0)
      << "after a message";
}

TEST(Fused, MakesASumThatIsCopiedUnrounded) {
  plan::Problem problem = causal_problem(1, 16);
  problem.dtype = plan::Dtype::Bf16;
  const plan::Planner planner(problem, plan::parse_strategy("ring"));
  for (const bool unrounded : {false, true}) {
    plan::RankProgram program = planner.program(plan::Pass::Backward, 0);
    plan::Op& copy = first_of(program, plan::OpKind::Copy);
    if (unrounded) copy.views[0] = another(program, copy.views[1]);
    EXPECT_EQ(at_once(*compile(planner, program, kernel::cpu_kernel())), unrounded ? 0 : 1);
  }
}

// Sums of one op that become results of two others, each with a sum that is not the op's.
TEST(Fused, FinishesOutAndLogSumExpTogetherOrNot) {
  using plan::OpKind;
  const auto crosswise = [](plan::RankProgram& program) {
    const plan::Op finish = first_of(program, OpKind::Finish);
    plan::Op other = finish;
    std::vector<plan::Op> clears;
    for (std::size_t v = 0; v < 4; ++v) {
      other.views[v] = another(program, finish.views[v]);
      if (v < 2) continue;
      clears.push_back({.kind = OpKind::Clear, .step = first_of(program, OpKind::Clear).step});
      clears.back().views.push_back(other.views[v]);
    }
    insert_before(program, OpKind::Attend, clears);
    std::swap(other.views[1], first_of(program, OpKind::Finish).views[1]);
    std::swap(other.views[3], first_of(program, OpKind::Finish).views[3]);
    insert_before(program, OpKind::Finish, {other});
  };
  EXPECT_EQ(at_once_after(plan::Pass::Forward, crosswise), 0);
}

}  // namespace
}  // namespace armillary::attention
