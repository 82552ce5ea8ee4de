// Runs the checks of verify/ in order. Each relies on those before it, so the first check that
// finds anything is the last one that runs.
#include "armillary/plan/verify.h"

#include "armillary/core/error.h"
#include "armillary/plan/verify/steps.h"
#include "armillary/plan/verify/structure.h"
#include "armillary/plan/verify/symbols.h"
#include "armillary/plan/verify/waits.h"

namespace armillary::plan {

std::vector<Diagnostic> verify(const Plan& plan, int limit) {
  ARMILLARY_CHECK(limit >= 1);
  validate(plan.problem);
  verifier::Diagnostics diagnostics(limit);
  // Structure.
  verifier::check_partition(plan, diagnostics);
  if (!diagnostics.empty()) return diagnostics.take();
  verifier::check_well_formed(plan, diagnostics);
  if (!diagnostics.empty()) return diagnostics.take();
  verifier::check_externals(plan, diagnostics);
  if (!diagnostics.empty()) return diagnostics.take();
  verifier::check_zero_copy(plan, diagnostics);
  if (!diagnostics.empty()) return diagnostics.take();
  const std::vector<verifier::MatchedMessage> messages =
      verifier::match_messages(plan, diagnostics);
  if (!diagnostics.empty()) return diagnostics.take();
  // Most plans are proved rank by rank. If one is not, the graph of waits and a run in its order
  // decide, and say what is wrong.
  std::vector<verifier::Action> actions;
  const bool ordered = verifier::waits_follow_steps(plan, messages);
  if (!ordered) actions = verifier::order_actions(plan, messages, diagnostics);
  if (!diagnostics.empty()) return diagnostics.take();
  if (verifier::holds_on_symbols(plan, messages)) return {};
  if (ordered) actions = verifier::order_actions(plan, messages, diagnostics);
  verifier::run_symbols(plan, actions, diagnostics);
  return diagnostics.take();
}

namespace {

/// True if both tiles are the same part of the same tensor, wherever they lie.
bool are_alike(const Tile& a, const Tile& b) {
  return a.tensor == b.tensor && a.heads == b.heads && a.blocks == b.blocks;
}

}  // namespace

bool finds_saved(const RankProgram& forward, const RankProgram& later) {
  return std::ranges::equal(forward.saved, later.saved, [&](int left, int found) {
    return are_alike(forward.tiles[left], later.tiles[found]);
  });
}

// Like finds_saved() for every rank, but names each tile that differs.
std::vector<Diagnostic> verify_saved(const Plan& forward, const Plan& backward, int limit) {
  verifier::Diagnostics diagnostics(limit);
  if (!(forward.problem == backward.problem) || !(forward.blocks == backward.blocks)) {
    diagnostics.add(-1, -1, "blocks", "forward and backward solve different problems");
    return diagnostics.take();
  }
  for (std::size_t r = 0; r < forward.ranks.size(); ++r) {
    const RankProgram& left = forward.ranks[r];
    const RankProgram& found = backward.ranks[r];
    for (std::size_t s = 0; s < left.saved.size(); ++s) {
      const Tile& a = left.tiles[left.saved[s]];
      const Tile& b = found.tiles[found.saved[s]];
      if (!are_alike(a, b)) {
        diagnostics.add(left.rank, -1, "blocks", "forward saves {} but backward finds {}",
                        verifier::describe(left, {left.saved[s], a.heads, a.blocks}),
                        verifier::describe(found, {found.saved[s], b.heads, b.blocks}));
      }
    }
  }
  return diagnostics.take();
}

}  // namespace armillary::plan
