// Ownership of a message that is zero copy. plan/passes/zero_copy_test.cpp tests which messages
// are, and executor_test.cpp that results are right.
#include "armillary/runtime/zero_copy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "armillary/kernel/cpu_kernel.h"
#include "armillary/plan/testing/causal_problem.h"
#include "armillary/proof/prove.h"

namespace armillary::runtime {
namespace {

using plan::OpKind;
using plan::Tensor;

plan::Problem full_problem() {
  plan::Problem problem = plan::causal_problem(2, 16);
  problem.mask = plan::parse_mask("full", {16, 16});
  return problem;
}

/// The first op of this kind whose first view shows this tensor.
std::size_t op_of(const plan::RankProgram& program, OpKind kind, Tensor tensor) {
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const plan::Op& op = program.ops[i];
    if (op.kind == kind && program.tiles[op.views[0].tile].tensor == tensor) return i;
  }
  ADD_FAILURE() << "no " << to_string(kind) << " of " << to_string(tensor);
  return 0;
}

// The message owns the memory that its receiver borrows, whichever end is done first.
TEST(ZeroCopy, TheMemoryThatIsLentHasAnOwner) {
  const plan::Planner planner(full_problem(), plan::parse_strategy("ring"));
  const auto compiled =
      compile(planner, proof::runnable(planner, plan::Pass::Forward, 1), kernel::cpu_kernel());
  const auto op = static_cast<int>(op_of(compiled->program, OpKind::Send, Tensor::K));
  ZeroCopy zero_copy(*compiled, at::kCPU);
  at::Tensor memory = at::ones({4});
  comm::Message message{.direction = comm::Direction::Send, .peer = 0, .lane = 1, .parts = {}};
  zero_copy.allow(op, memory, message);
  EXPECT_TRUE(message.zero_copy);
  ASSERT_NE(message.owner, nullptr);
  EXPECT_EQ(memory.use_count(), 2U) << "the message's owner has it too";
  zero_copy.release();
  EXPECT_EQ(memory.use_count(), 1U);
}

}  // namespace
}  // namespace armillary::runtime
