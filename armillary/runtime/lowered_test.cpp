// Lowered programs give the results of the programs that strategies make. The tests beside
// plan/passes/ check which ops are lowered.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/kernel/reference.h"
#include "armillary/kernel/testing/naive_attention.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/testing/causal_problem.h"
#include "armillary/plan/testing/every_strategy.h"
#include "armillary/plan/verify/verify.h"
#include "armillary/runtime/dtypes.h"
#include "armillary/runtime/executor.h"
#include "tests/tolerance.h"

namespace armillary::runtime {
namespace {

using plan::Tensor;

constexpr double kScale = 0.35;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Tokens of a whole sequence that a rank owns, in its memory order.
at::Tensor rows_of(const plan::Planner& planner, Tensor tensor, plan::Rank rank) {
  plan::Runs runs;
  for (const plan::Block& block : blocks_of(planner.blocks(), tensor)) {
    if (block.owner == rank) runs.insert(runs.end(), block.runs.begin(), block.runs.end());
  }
  return at::tensor(plan::positions(runs), at::kLong);
}

/// An attention whose programs are lowered by some passes, and its results over whole sequences.
struct LoweredCase {
  plan::Planner planner;
  std::vector<plan::Lowering> lowerings;
  std::string name;
  kernel::Results whole;
};

/// The passes of one attention on one rank: forward, a replay from the kept output, and backward on
/// what the replay leaves.
class OnRank {
 public:
  OnRank(LoweredCase& example, comm::Communicator& comm, const kernel::Sequences& sequences)
      : case_(example), comm_(comm), sequences_(sequences) {}

  void run() {
    const Execution forward = run_pass(plan::Pass::Forward, nullptr);
    const Execution replay = run_pass(plan::Pass::Replay, &forward);
    for (const Tensor tensor : {Tensor::Q, Tensor::K, Tensor::V, Tensor::Out, Tensor::Lse}) {
      EXPECT_TRUE(at::equal(replay.saved(tensor), forward.saved(tensor)))
          << case_.name << ' ' << to_string(tensor);
    }
    const Execution backward = run_pass(plan::Pass::Backward, &replay);
    put(replay, Tensor::Out, case_.whole.out_BSHE);
    put(replay, Tensor::Lse, case_.whole.lse_BSH);
    put(backward, Tensor::DQ, case_.whole.dq_BSHD);
    put(backward, Tensor::DK, case_.whole.dk_BSGD);
    put(backward, Tensor::DV, case_.whole.dv_BSGE);
  }

 private:
  /// Runs a pass; what the caller does not own is what the pass before it left.
  Execution run_pass(plan::Pass pass, const Execution* before) {
    const plan::Planner& planner = case_.planner;
    plan::RankProgram program = plan::lower(planner.problem(), planner.blocks(),
                                            planner.program(pass, comm_.rank()), case_.lowerings);
    std::vector<int> awaited = program.inputs;
    if (pass == plan::Pass::Backward) {
      awaited.insert(awaited.end(), program.saved.begin(), program.saved.end());
    }
    const std::vector<plan::Tile> tiles = program.tiles;
    Execution run(compile(planner, std::move(program), kernel::reference()), comm_,
                  {.score = {kScale}});
    for (const int tile : awaited) {
      const Tensor tensor = tiles[tile].tensor;
      const bool result = tensor == Tensor::Out || tensor == Tensor::Lse;
      const bool left = pass == plan::Pass::Backward ? tensor != Tensor::DOut : result;
      run.feed(tensor, left ? before->saved(tensor) : own(tensor));
    }
    run.finish();
    return run;
  }

  at::Tensor own(Tensor tensor) const {
    const std::map<Tensor, at::Tensor> whole{{Tensor::Q, sequences_.q_BSHD},
                                             {Tensor::K, sequences_.k_BSGD},
                                             {Tensor::V, sequences_.v_BSGE},
                                             {Tensor::DOut, sequences_.dout_BSHE}};
    return whole.at(tensor).index_select(1, rows_of(case_.planner, tensor, comm_.rank()));
  }

  void put(const Execution& run, Tensor tensor, at::Tensor& whole) const {
    whole.index_copy_(1, rows_of(case_.planner, tensor, comm_.rank()), run.output(tensor));
  }

  LoweredCase& case_;
  comm::Communicator& comm_;
  const kernel::Sequences& sequences_;
};

/// Every subset of the passes, by the bits of `subset`. All are exact by verify.
std::vector<plan::Lowering> proved_lowerings(const std::vector<plan::Plan>& plans,
                                             std::size_t subset) {
  std::vector<plan::Lowering> lowerings;
  for (std::size_t i = 0; i < plan::kLowerings.size(); ++i) {
    if ((subset >> i & 1) != 0) lowerings.push_back(plan::kLowerings.at(i));
  }
  std::vector<plan::Plan> lowered;
  lowered.reserve(plans.size());
  for (const plan::Plan& plan : plans) lowered.push_back(plan::lower(plan, lowerings));
  for (const plan::PassVerdict& one : verify_together(lowered, 1)) {
    EXPECT_TRUE(one.diagnostics.empty()) << plans[0].strategy << " lowered by " << subset;
  }
  return lowerings;
}

void expect_near(const LoweredCase& example, const kernel::Results& required) {
  const auto near = [&](const char* name, const at::Tensor& one, const at::Tensor& other) {
    EXPECT_LE(kernel::relative_error(one, other), kFp64Bound) << example.name << ' ' << name;
  };
  near("out", example.whole.out_BSHE, required.out_BSHE);
  near("lse", example.whole.lse_BSH, required.lse_BSH);
  near("dq", example.whole.dq_BSHD, required.dq_BSHD);
  near("dk", example.whole.dk_BSGD, required.dk_BSGD);
  near("dv", example.whole.dv_BSGE, required.dv_BSGE);
}

/// Every subset of the passes, for every strategy, in fp64, where sums may lie in their results.
void expect_all_exact(const plan::Problem& problem) {
  const kernel::Sequences sequences = kernel::random_sequences(
      {problem.batch, problem.heads, problem.kv_heads, problem.head_dim, problem.value_dim},
      problem.mask, at::kDouble, 11);
  const kernel::Results required = kernel::naive_attention(sequences, problem.mask, kScale);
  const auto unset = [](const at::Tensor& like) { return at::full_like(like, kNan); };
  std::vector<LoweredCase> examples;
  for (const std::string& name : plan::every_strategy(problem)) {
    const plan::Planner planner(problem, plan::parse_strategy(name));
    const std::vector<plan::Plan> plans =
        make_plans(problem, planner.strategy(),
                   {plan::Pass::Forward, plan::Pass::Backward, plan::Pass::Replay});
    for (std::size_t subset = 0; subset < 1U << plan::kLowerings.size(); ++subset) {
      examples.push_back(
          {planner,
           proved_lowerings(plans, subset),
           fmt::format("{} world {} lowered by {:04b}", name, problem.world, subset),
           {unset(required.out_BSHE), unset(required.lse_BSH), unset(required.dq_BSHD),
            unset(required.dk_BSGD), unset(required.dv_BSGE)}});
    }
  }
  comm::run_ranks(problem.world, [&](comm::Communicator& comm) {
    for (LoweredCase& one : examples) OnRank(one, comm, sequences).run();
  });
  for (const LoweredCase& one : examples) expect_near(one, required);
}

TEST(Lowered, EverySubsetOfThePassesIsExact) {
  for (const auto& [world, tokens] : {std::pair(4, 13), std::pair(2, 1), std::pair(1, 5)}) {
    plan::Problem problem = plan::causal_problem(world, tokens);
    problem.dtype = plan::Dtype::F64;
    problem.return_lse = true;
    problem.value_dim = 5;
    expect_all_exact(problem);
  }
}

/// Adds a tile like `id` of rank 0 to rank 1, in a slot of its own, and returns its number.
int add_like(plan::Plan& plan, int id) {
  plan::RankProgram& there = plan.ranks[1];
  const plan::Tile& tile = plan.ranks[0].tiles[id];
  there.slots.push_back({plan.ranks[0].slots[tile.slot].bytes});
  there.tiles.push_back(tile);
  there.tiles.back().slot = static_cast<int>(there.slots.size()) - 1;
  return static_cast<int>(there.tiles.size()) - 1;
}

/// A ring backward in which rank 1 makes the result of rank 0's dq in place and sends it back.
plan::Plan with_copy_elsewhere(const plan::Problem& problem) {
  plan::Plan plan = make_plan(problem, plan::parse_strategy("ring"), plan::Pass::Backward);
  std::vector<plan::Op>& here = plan.ranks[0].ops;
  const auto copy = std::ranges::find_if(here, [&](const plan::Op& op) {
    return op.kind == plan::OpKind::Copy &&
           plan.ranks[0].tiles[op.views[0].tile].tensor == Tensor::DQ;
  });
  const plan::View dst = copy->views[0];
  const plan::View src = copy->views[1];
  here.erase(copy);
  const plan::View sum{add_like(plan, src.tile), src.heads, src.blocks};
  const plan::View result{add_like(plan, dst.tile), dst.heads, dst.blocks};
  plan.ranks[1].tiles[result.tile].slot = plan.ranks[1].tiles[sum.tile].slot;
  using enum plan::OpKind;
  here.push_back({.kind = Send, .lane = 8, .step = 90, .peer = 1, .views = {src}});
  here.push_back({.kind = Recv, .lane = 9, .step = 92, .peer = 1, .views = {dst}});
  std::vector<plan::Op>& there = plan.ranks[1].ops;
  there.push_back({.kind = Recv, .lane = 8, .step = 90, .peer = 0, .views = {sum}});
  there.push_back({.kind = Copy, .step = 91, .views = {result, sum}});
  there.push_back({.kind = Send, .lane = 9, .step = 92, .peer = 0, .views = {result}});
  return plan;
}

// The sum is borrowed from rank 0, so the result in its slot is another memory.
TEST(Lowered, ACopyInPlaceOfWhatIsBorrowedIsMade) {
  const plan::Problem problem = plan::causal_problem(2, 8);
  const plan::Planner planner(problem, plan::parse_strategy("ring"));
  const auto dq_of = [&](plan::Plan plan) {
    plan = plan::lower(std::move(plan), {plan::Lowering::ZeroCopy});
    EXPECT_TRUE(plan::verify(plan).empty());
    at::Tensor dq;
    comm::run_ranks(2, [&](comm::Communicator& comm) {
      const auto compiled = compile(planner, plan.ranks[comm.rank()], kernel::reference());
      Execution run(compiled, comm, {.score = {kScale}});
      const plan::RankProgram& program = compiled->program;
      at::Generator generator = at::detail::createCPUGenerator(7 + comm.rank());
      for (const int tile : {program.saved[0], program.saved[1], program.saved[2], program.saved[3],
                             program.saved[4], program.inputs[0]}) {
        run.feed(program.tiles[tile].tensor, at::randn(compiled->shapes[tile], generator));
      }
      run.finish();
      if (comm.rank() == 0) dq = run.output(Tensor::DQ).clone();
    });
    return dq;
  };
  EXPECT_TRUE(at::equal(dq_of(with_copy_elsewhere(problem)),
                        dq_of(make_plan(problem, planner.strategy(), plan::Pass::Backward))));
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
