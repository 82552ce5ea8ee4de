// Which messages may be lent or borrowed; that results are right is what executor_test.cpp holds.
#include "armillary/attention/loans.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "armillary/attention/causal_problem.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/plan/passes/lower.h"

namespace armillary::attention {
namespace {

using plan::OpKind;
using plan::Tensor;

plan::Problem full_problem() {
  plan::Problem problem = causal_problem(2, 16);
  problem.mask = plan::parse_mask("full", {16, 16});
  return problem;
}

/// First op of a kind whose first view is of a tensor.
std::size_t op_of(const plan::RankProgram& program, OpKind kind, Tensor tensor) {
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const plan::Op& op = program.ops[i];
    if (op.kind == kind && program.tiles[op.views[0].tile].tensor == tensor) return i;
  }
  ADD_FAILURE() << "no " << to_string(kind) << " of " << to_string(tensor);
  return 0;
}

/// Whether the first op of a kind that moves a tensor may lend or borrow, after the ring's program
/// of rank 1 of 2 was changed by hand.
bool has_loan(const plan::Problem& problem, OpKind kind, Tensor tensor,
              const std::function<void(plan::RankProgram&)>& change) {
  const plan::Planner planner(problem, plan::parse_strategy("ring"));
  plan::RankProgram program = planner.program(plan::Pass::Forward, 1);
  change(program);
  program = plan::lower(problem, planner.blocks(), std::move(program));
  const auto compiled = compile(planner, program, kernel::cpu_kernel());
  const std::size_t op = op_of(program, kind, tensor);
  const CompiledOp& message = compiled->ops[op];
  EXPECT_TRUE(message.loan || message.readers.empty()) << "readers of no loan";
  return message.loan;
}

plan::View& received(plan::RankProgram& program) {
  return program.ops[op_of(program, OpKind::Recv, Tensor::K)].views[0];
}

TEST(Loans, AReceiveBorrowsAWholeTileThatIsItsAlone) {
  const auto borrows = [](const std::function<void(plan::RankProgram&)>& change) {
    return has_loan(full_problem(), OpKind::Recv, Tensor::K, change);
  };
  EXPECT_TRUE(borrows([](plan::RankProgram&) {}));
  EXPECT_FALSE(borrows([](plan::RankProgram& program) {
    received(program).heads = {0, 1};
  })) << "some of the heads";
  EXPECT_FALSE(borrows([](plan::RankProgram& program) {
    ASSERT_GT(received(program).blocks.size(), 1U);
    received(program).blocks = {received(program).blocks.front()};
  })) << "some of the blocks";
  EXPECT_FALSE(borrows([](plan::RankProgram& program) {
    program.outputs.push_back(received(program).tile);
  })) << "the caller's memory";
  EXPECT_FALSE(borrows([](plan::RankProgram& program) {
    plan::Op clear{.kind = OpKind::Clear, .step = program.ops.back().step};
    clear.views.push_back(received(program));
    program.ops.push_back(clear);
  })) << "another op writes it";
}

// The second part of a packed message would be looked for in memory that is not its own.
TEST(Loans, WhatIsPackedIntoOneMessageIsNot) {
  for (const OpKind kind : {OpKind::Send, OpKind::Recv}) {
    EXPECT_TRUE(has_loan(full_problem(), kind, Tensor::K, [](plan::RankProgram&) {}));
    EXPECT_FALSE(has_loan(full_problem(), kind, Tensor::K, [](plan::RankProgram& program) {
      for (plan::Op& op : program.ops) {
        if (op.is_comm()) op.collective = plan::Collective::AllToAll;
      }
    })) << to_string(kind);
  }
}

// What is lent keeps its memory alive, whoever of the two ends is done first.
TEST(Loans, TheMemoryThatIsLentHasAnOwner) {
  const plan::Planner planner(full_problem(), plan::parse_strategy("ring"));
  const auto compiled = compile(planner, plan::Pass::Forward, 1, kernel::cpu_kernel());
  const auto op = static_cast<int>(op_of(compiled->program, OpKind::Send, Tensor::K));
  Loans loans(*compiled);
  at::Tensor memory = at::ones({4});
  comm::Message message{.direction = comm::Direction::Send, .peer = 0, .lane = 1, .parts = {}};
  loans.allow(op, memory, message);
  EXPECT_TRUE(message.loan);
  ASSERT_NE(message.owner, nullptr);
  EXPECT_EQ(memory.use_count(), 2U) << "the message's owner has it too";
  loans.release();
  EXPECT_EQ(memory.use_count(), 1U);
}

// A partial that lives in the result is finished in place, with the sinks.
TEST(Loans, WhatIsWrittenOverAsTheResultIsNotLent) {
  const auto send_partial = [](plan::RankProgram& program) {
    const std::size_t finish = op_of(program, OpKind::Finish, Tensor::Out);
    plan::Op send{.kind = OpKind::Send, .lane = 1, .step = program.ops[finish].step, .peer = 0};
    send.views.push_back(program.ops[finish].views[2]);
    program.ops.insert(program.ops.begin() + static_cast<std::ptrdiff_t>(finish), send);
  };
  plan::Problem problem = full_problem();
  EXPECT_FALSE(has_loan(problem, OpKind::Send, Tensor::Out, send_partial));
  problem.dtype = plan::Dtype::Bf16;  // The partial has another dtype, and memory of its own.
  EXPECT_TRUE(has_loan(problem, OpKind::Send, Tensor::Out, send_partial));
}

}  // namespace
}  // namespace armillary::attention
