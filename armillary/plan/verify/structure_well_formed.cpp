// Rule `well_formed`, the part of attention: sums travel in the problem's transfer dtype, keys
// have the heads that the queries read, and ops that write results are one kernel call.
#include <vector>

#include "armillary/plan/operands.h"
#include "armillary/plan/segments.h"
#include "armillary/plan/verify/structure.h"

namespace armillary::plan::verifier {
namespace {

/// A partial that travels is narrow exactly if the problem's transfer dtype says so.
void check_transfer_dtype(const Plan& plan, const RankProgram& program, int i,
                          Diagnostics& diagnostics) {
  for (const View& view : program.ops[i].views) {
    const Tile& moved = program.tiles[view.tile];
    if (!moved.partial || moved.narrow == travels_narrow(plan.problem, moved.tensor)) continue;
    diagnostics.add(program.rank, i, "well_formed",
                    "{} travels in {}; under transfer dtype {} it travels in {}",
                    describe(program, view), to_string(dtype_of(plan.problem, moved)),
                    to_string(plan.problem.transfer_dtype), to_string(plan.problem.dtype));
  }
}

/// Keys have the KV heads that the query heads read. An op that initialises accumulators, or writes
/// results, must be one kernel call: a second call would write over the first one.
void check_attend(const Plan& plan, const RankProgram& program, int i, Diagnostics& diagnostics) {
  const Op& op = program.ops[i];
  const View& q = op.views[QkvOperand::kQ];
  const View& k = op.views[QkvOperand::kK];
  if (!k.heads.contains(kv_heads_of(plan.problem, q.heads))) {
    diagnostics.add(program.rank, i, "well_formed", "{} does not hold the KV heads of {}",
                    describe(program, k), describe(program, q));
    return;
  }
  const bool one = op.init[kQSide] || op.init[kKvSide] || op.kind == OpKind::AttendAll ||
                   op.kind == OpKind::AttendGradAll;
  if (!one || is_one_call(plan.problem.mask, plan.blocks, program, op)) return;
  diagnostics.add(program.rank, i, "well_formed",
                  "{} of {} and {} is not one kernel call, as it must be", to_string(op.kind),
                  describe(program, q), describe(program, k));
}

}  // namespace

void check_well_formed(const Plan& plan, const Measures& measures, Diagnostics& diagnostics,
                       const Fold* fold) {
  const OpRule rule = [&](const RankProgram& program, int i, Diagnostics& diagnostics) {
    const Op& op = program.ops[i];
    if (op.is_comm()) return check_transfer_dtype(plan, program, i, diagnostics);
    if (attends(op) || attends_grad(op)) check_attend(plan, program, i, diagnostics);
  };
  std::vector<Rank> places;
  for (int c = 0; fold != nullptr && c < fold->classes(); ++c) {
    places.push_back(fold->representative(c));
  }
  plan::check_well_formed({measures, plan.ranks, plan.problem.world}, diagnostics, rule, places);
}

}  // namespace armillary::plan::verifier
