// Runs the checks of verify/ in order. Each relies on those before it, so the first check that
// finds anything is the last one that runs.
#include "armillary/plan/verify/verify.h"

#include <algorithm>

#include "armillary/core/error.h"
#include "armillary/plan/verify/structure.h"
#include "armillary/plan/verify/symbols.h"

namespace armillary::plan {

std::vector<Diagnostic> verify(const Plan& plan, int limit) {
  ARMILLARY_CHECK(limit >= 1);
  validate(plan.problem);
  Diagnostics diagnostics(limit);
  // Structure.
  verifier::check_partition(plan, diagnostics);
  if (!diagnostics.empty()) return diagnostics.take();
  const Measures measures = measures_of(plan.problem, plan.blocks);
  const World world{measures, plan.ranks, plan.problem.world};
  verifier::check_well_formed(plan, measures, diagnostics);
  if (!diagnostics.empty()) return diagnostics.take();
  verifier::check_externals(plan, diagnostics);
  if (!diagnostics.empty()) return diagnostics.take();
  check_zero_copy(world, diagnostics);
  if (!diagnostics.empty()) return diagnostics.take();
  const std::vector<MatchedMessage> messages = match_messages(world, diagnostics);
  if (!diagnostics.empty()) return diagnostics.take();
  // Most plans are proved rank by rank. If one is not, the graph of waits and a run in its order
  // decide, and say what is wrong.
  std::vector<Action> actions;
  const bool ordered = waits_follow_steps(world, messages);
  if (!ordered) actions = order_actions(world, messages, diagnostics);
  if (!diagnostics.empty()) return diagnostics.take();
  if (verifier::holds_on_symbols(plan, messages)) return {};
  if (ordered) actions = order_actions(world, messages, diagnostics);
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
  return std::ranges::equal(forward.saved, later.saved, [&](int left, int count) {
    return are_alike(forward.tiles[left], later.tiles[count]);
  });
}

// Like finds_saved() for every rank, but names each tile that differs.
std::vector<Diagnostic> verify_saved(const Plan& first, const Plan& later, int limit) {
  Diagnostics diagnostics(limit);
  if (!(first.problem == later.problem) || !(first.blocks == later.blocks)) {
    diagnostics.add(-1, -1, "blocks", "{} and {} solve different problems", to_string(first.pass),
                    to_string(later.pass));
    return diagnostics.take();
  }
  for (std::size_t r = 0; r < first.ranks.size(); ++r) {
    const RankProgram& left = first.ranks[r];
    const RankProgram& program = later.ranks[r];
    for (std::size_t s = 0; s < left.saved.size(); ++s) {
      const Tile& a = left.tiles[left.saved[s]];
      const Tile& b = program.tiles[program.saved[s]];
      if (!are_alike(a, b)) {
        diagnostics.add(left.rank, -1, "blocks", "{} saves {} but {} finds {}",
                        to_string(first.pass), describe(left, {left.saved[s], a.heads, a.blocks}),
                        to_string(later.pass),
                        describe(program, {program.saved[s], b.heads, b.blocks}));
      }
    }
  }
  return diagnostics.take();
}

namespace {

bool run_together(const Plan& a, const Plan& b) {
  return a.problem == b.problem && a.strategy == b.strategy;
}

}  // namespace

std::vector<PassVerdict> verify_together(const std::vector<Plan>& plans, int limit) {
  std::vector<PassVerdict> verdicts;
  verdicts.reserve(plans.size());
  for (const Plan& plan : plans) verdicts.push_back({.diagnostics = verify(plan, limit)});
  // The exact plans that leave tiles, forwards first.
  std::vector<const Plan*> leave;
  for (const Pass pass : {Pass::Forward, Pass::Replay}) {
    for (std::size_t i = 0; i < plans.size(); ++i) {
      if (plans[i].pass == pass && verdicts[i].diagnostics.empty()) leave.push_back(&plans[i]);
    }
  }
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const auto together = [&](const Plan& plan) { return run_together(plan, plans[i]); };
    verdicts[i].assumes_forward = std::ranges::none_of(
        plans, [&](const Plan& plan) { return plan.pass == Pass::Forward && together(plan); });
    // Plans that are wrong alone have no tiles to compare.
    const auto first =
        std::ranges::find_if(leave, [&](const Plan* plan) { return together(*plan); });
    if (first == leave.end() || *first == &plans[i] || !verdicts[i].diagnostics.empty()) continue;
    verdicts[i].diagnostics = verify_saved(**first, plans[i], limit);
  }
  return verdicts;
}

}  // namespace armillary::plan
