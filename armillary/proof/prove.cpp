// Runnable programs and their proofs. Programs that run and programs that are proved come from one
// source.
#include "armillary/proof/prove.h"

#include <fmt/format.h>

#include "armillary/core/error.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/program/parallel_for_ranks.h"
#include "armillary/plan/verify/verify.h"

namespace armillary::proof {
plan::RankProgram runnable(const plan::Planner& planner, plan::Pass pass, plan::Rank rank) {
  return plan::lower(planner.problem(), planner.blocks(), planner.program(pass, rank));
}

plan::RankProgram program_of(const ProgramSource& source, const plan::Planner& planner,
                             plan::Pass pass, plan::Rank rank) {
  return source ? (*source)(planner, pass, rank) : runnable(planner, pass, rank);
}

PassProof prove(const plan::Planner& planner, plan::Pass pass, const ProgramSource& source) {
  const int world = planner.problem().world;
  plan::Plan plan{.problem = planner.problem(),
                  .strategy = to_string(planner.strategy()),
                  .pass = pass,
                  .blocks = planner.blocks(),
                  .ranks = std::vector<plan::RankProgram>(world)};
  // Programs are made in parallel; each rank has its own element of the two lists.
  PassProof proof;
  proof.programs.resize(world);
  const Digest blocks = digest_of(plan.blocks);
  plan::parallel_for_ranks(world, [&](plan::Rank rank) {
    plan::RankProgram& program = plan.ranks[rank];
    program = program_of(source, planner, pass, rank);
    proof.programs[rank] = digest_of(program, blocks);
  });
  // One diagnostic is enough to refuse the plan.
  const std::vector<plan::Diagnostic> diagnostics = verify(plan, 1);
  if (!diagnostics.empty()) {
    // Strategy and pass, then the place: rank and op; then the rule, and its text.
    proof.wrong = fmt::format("{} {}: rank {} op {}: {}: {}", plan.strategy, to_string(pass),
                              diagnostics[0].rank, diagnostics[0].op, diagnostics[0].rule,
                              diagnostics[0].text);
  }
  return proof;
}

std::string first_wrong(const plan::Planner& planner,
                        const std::array<PassProof, kPasses.size()>& passes,
                        const ProgramSource& source) {
  for (const PassProof& pass : passes) {
    if (!pass.wrong.empty()) return pass.wrong;
  }
  // All passes are exact by themselves. Later passes must also find the tiles that forward saves.
  for (int rank = 0; rank < planner.problem().world; ++rank) {
    const plan::RankProgram forward = program_of(source, planner, plan::Pass::Forward, rank);
    for (const plan::Pass later : {plan::Pass::Backward, plan::Pass::Replay}) {
      if (!plan::finds_saved(forward, program_of(source, planner, later, rank))) {
        return fmt::format("rank {}: {} does not find what forward saves", rank, to_string(later));
      }
    }
  }
  return "";
}

}  // namespace armillary::proof
