// Compiles a program of attention: the machine's part, and the kernel calls of each op.
#include "armillary/runtime/compiled_program.h"

#include <algorithm>
#include <utility>

#include "armillary/plan/operands.h"

namespace armillary::runtime {
namespace {

/// The pass that a program is of: backward is given dOut, and replay the kept output.
plan::Pass pass_of(const plan::RankProgram& program) {
  const auto is_given = [&](plan::Tensor tensor) {
    return std::ranges::any_of(program.inputs,
                               [&](int tile) { return program.tiles[tile].tensor == tensor; });
  };
  if (is_given(plan::Tensor::DOut)) return plan::Pass::Backward;
  return is_given(plan::Tensor::Out) ? plan::Pass::Replay : plan::Pass::Forward;
}

/// Kernel calls of an op that attends: every query segment against every key segment, except for
/// pairs of segments without a visible (query, key) pair.
std::vector<KernelCall> calls_of(const CompiledProgram& compiled, const CompiledOp& op) {
  if (!attends(*op.op) && !attends_grad(*op.op)) return {};
  const plan::LocatedView& q = op.views[plan::QkvOperand::kQ];
  const plan::LocatedView& k = op.views[plan::QkvOperand::kK];
  std::vector<KernelCall> calls;
  for (std::size_t i = 0; i < q.segments.size(); ++i) {
    for (std::size_t j = 0; j < k.segments.size(); ++j) {
      kernel::Pairs pairs{.q_runs = q.segments[i].positions,
                          .k_runs = k.segments[j].positions,
                          .mask = &compiled.problem.mask,
                          .heads = {.first_q_head = q.first_global_head,
                                    .first_kv_head = k.first_global_head,
                                    .group_size = compiled.problem.group_size()}};
      if (pairs.mask->empty(pairs.q_runs, pairs.k_runs)) continue;
      pairs.prepared = compiled.kernel->prepare(pairs);
      calls.push_back({i, j, std::move(pairs)});
    }
  }
  return calls;
}

}  // namespace

std::shared_ptr<const CompiledProgram> compile(const plan::Planner& planner,
                                               plan::RankProgram program,
                                               const kernel::Kernel& kernel) {
  auto result = std::make_shared<CompiledProgram>();
  CompiledProgram& compiled = *result;
  compiled.problem = planner.problem();
  compiled.program = std::move(program);
  compiled.strategy = to_string(planner.strategy());
  const plan::Pass pass = pass_of(compiled.program);
  compiled.pass = static_cast<int>(pass);
  compiled.kernel = &kernel;
  // Pointers into `compiled` stay valid, because the object is on the heap and never moves.
  prepare(compiled, planner.problem().world, measures_of(planner.problem(), planner.blocks()),
          [&](const plan::Op& op) { return plan::locate(planner.blocks(), compiled.program, op); });
  // Backward is also given what forward saved; in the other passes saved tiles are results.
  if (pass == plan::Pass::Backward) {
    const std::vector<int>& saved = compiled.program.saved;
    compiled.caller_tiles.insert(compiled.caller_tiles.end(), saved.begin(), saved.end());
  }
  for (const CompiledOp& op : compiled.ops) compiled.calls.push_back(calls_of(compiled, op));
  return result;
}

}  // namespace armillary::runtime
