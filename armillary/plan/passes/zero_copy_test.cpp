// zero_copy_test.cpp: the messages that the pass zero_copy finds, shown as one character per send
// and receive, on programs of a few ops that make each exception.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "armillary/plan/operands.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/testing/broken_plan.h"

namespace armillary::plan {
namespace {

/// The messages of a rank in order: `>` for a send, `<` for a receive, and the value of zero_copy.
std::string zero_copies_of(const RankProgram& program) {
  std::string text;
  for (const Op& op : program.ops) {
    if (op.is_comm())
      text += fmt::format("{}{} ", op.kind == OpKind::Send ? ">" : "<", op.zero_copy);
    EXPECT_FALSE(op.zero_copy && !op.is_comm());
  }
  return text;
}

RankProgram with_zero_copy(const Plan& plan, Rank rank) {
  return zero_copy(plan.ranks[rank]);
}

TEST(ZeroCopy, WhatNobodyWritesOverIsZeroCopy) {
  EXPECT_EQ(zero_copies_of(with_zero_copy(ring_forward(2), 1)), ">true <true >true <true ");
  EXPECT_EQ(zero_copies_of(ring_forward(2).ranks[1]), ">false <false >false <false ")
      << "not by itself";
}

// A ring of 4 has two slots for K: the third K to arrive lies in the slot that the first was sent
// on from.
TEST(ZeroCopy, WhatIsSentOnAndWrittenOverIsNone) {
  EXPECT_EQ(zero_copies_of(with_zero_copy(ring_forward(4), 0)),
            ">true <true >true <true "    // K and V of its own, the first to come
            ">false <true >false <true "  // the first go on, and the third will be written there
            ">true <true >true <true ");  // the second go on
}

TEST(ZeroCopy, ATileThatTwoWriteIsNotBorrowed) {
  Plan plan = ring_forward(2);
  Op again = ops(plan, 0)[1];
  ops(plan, 0).push_back({.kind = OpKind::Clear, .step = 9, .views = again.views});
  EXPECT_EQ(zero_copies_of(with_zero_copy(plan, 0)), ">true <false >true <true ");
}

TEST(ZeroCopy, APartOfATileIsNotBorrowed) {
  Plan plan = ring_forward(2);
  ops(plan, 0)[1].views[0].heads.end = 1;
  EXPECT_EQ(zero_copies_of(with_zero_copy(plan, 0)), ">true <false >true <true ");
}

TEST(ZeroCopy, NorIsATileOfTheCaller) {
  Plan plan = ring_forward(2);
  plan.ranks[0].slots[tile(plan, 0, 3).slot].external = true;
  EXPECT_EQ(zero_copies_of(with_zero_copy(plan, 0)), ">true <false >true <true ");
}

/// Tiles that forward saves are the caller's in every program: K, V and Q that are traded for
/// heads, or transposed, come with a copy.
TEST(ZeroCopy, NorIsATileThatForwardSaves) {
  for (const char* strategy : {"ulysses", "attention2d:rows=2", "usp:u=2"}) {
    for (const Pass pass : {Pass::Forward, Pass::Replay}) {
      const Plan plan = make_plan(small_problem(4), parse_strategy(strategy), pass);
      int saved = 0;
      for (const RankProgram& program : lower(plan, {Lowering::ZeroCopy}).ranks) {
        for (const Op& op : program.ops) {
          if (op.kind != OpKind::Recv) continue;
          if (std::ranges::count(program.saved, op.views.front().tile) == 0) continue;
          EXPECT_FALSE(op.zero_copy) << strategy;
          ++saved;
        }
      }
      EXPECT_GT(saved, 0) << strategy;
    }
  }
}

TEST(ZeroCopy, AMessageOfSeveralViewsIsNone) {
  Plan plan = ring_forward(2);
  ops(plan, 0)[0].views.push_back(ops(plan, 0)[2].views[0]);
  EXPECT_EQ(zero_copies_of(with_zero_copy(plan, 0)), ">false <true >true <true ");
}

/// The first op of a kind whose first view is of a tensor.
std::size_t op_of(const RankProgram& program, OpKind kind, Tensor tensor) {
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (op.kind == kind && program.tiles[op.views.front().tile].tensor == tensor) return i;
  }
  ADD_FAILURE() << "no " << to_string(kind) << " of " << to_string(tensor);
  return 0;
}

// The receiver of a joined message would look for its second part in memory of the first.
TEST(ZeroCopy, WhatIsJoinedIntoOneMessageIsNone) {
  for (const Collective collective : {Collective::None, Collective::AllToAll}) {
    Plan plan = ring_forward(2);
    for (Op& op : ops(plan, 0)) {
      if (op.is_comm()) op.collective = collective;
    }
    const RankProgram lowered = lower(plan).ranks[0];
    for (const OpKind kind : {OpKind::Send, OpKind::Recv}) {
      EXPECT_EQ(lowered.ops[op_of(lowered, kind, Tensor::K)].zero_copy,
                collective == Collective::None);
    }
  }
}

// A partial that lives in the result is finished in place, with the sinks.
TEST(ZeroCopy, WhatIsWrittenOverAsTheResultIsNone) {
  for (const Dtype dtype : {Dtype::F32, Dtype::Bf16}) {  // bf16: the partial has memory of its own
    Problem problem = small_problem(2);
    problem.dtype = dtype;
    Plan plan = make_plan(problem, {.name = "ring"}, Pass::Forward);
    const std::size_t finish = op_of(plan.ranks[0], OpKind::Finish, Tensor::Out);
    const Op& end = ops(plan, 0)[finish];
    insert(plan, 0, static_cast<int>(finish),
           {.kind = OpKind::Send,
            .lane = 1,
            .step = end.step,
            .peer = 1,
            .views = {end.views[FinishOperand::kPartOut]}});
    const RankProgram lowered = lower(plan).ranks[0];
    EXPECT_EQ(lowered.ops[op_of(lowered, OpKind::Send, Tensor::Out)].zero_copy,
              dtype == Dtype::Bf16);
  }
}

}  // namespace
}  // namespace armillary::plan
