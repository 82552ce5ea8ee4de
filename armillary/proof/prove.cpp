// Runnable programs and their proofs. Programs that run and programs that are proved come from one
// function, make(), so a test can change one or both and see that the difference is noticed.
#include "armillary/proof/prove.h"

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/plan/parallel_for_ranks.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/verify.h"

namespace armillary::proof {
namespace {

/// The change that a test asks for; null in every other process.
class CurrentChange {
 public:
  static CurrentChange& of_this_process() {
    static CurrentChange current;
    return current;
  }
  void set(std::shared_ptr<const ChangedPrograms::Change> change) {
    const std::lock_guard lock(mutex_);
    change_ = std::move(change);
  }
  /// Changes the program if a test asks for it. Called by many threads at once.
  void apply(plan::Pass pass, bool proving, plan::RankProgram& program) {
    // A copy of the pointer keeps the change alive after the lock is released.
    const std::shared_ptr<const ChangedPrograms::Change> change = get();
    if (change) (*change)(pass, proving, program);
  }

 private:
  std::shared_ptr<const ChangedPrograms::Change> get() {
    const std::lock_guard lock(mutex_);
    return change_;
  }
  std::mutex mutex_;
  std::shared_ptr<const ChangedPrograms::Change> change_;
};

/// Strategy, then lowering, then the change of a test.
plan::RankProgram make(const plan::Planner& planner, plan::Pass pass, plan::Rank rank,
                       bool proving) {
  plan::RankProgram program =
      plan::lower(planner.problem(), planner.blocks(), planner.program(pass, rank));
  CurrentChange::of_this_process().apply(pass, proving, program);
  return program;
}

}  // namespace

plan::RankProgram runnable(const plan::Planner& planner, plan::Pass pass, plan::Rank rank) {
  return make(planner, pass, rank, false);
}

PassProof prove(const plan::Planner& planner, plan::Pass pass) {
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
    program = make(planner, pass, rank, true);
    proof.programs[rank] = digest_of(program, blocks);
  });
  // One diagnostic is enough to refuse the plan.
  const std::vector<plan::Diagnostic> found = verify(plan, 1);
  if (!found.empty()) {
    // Strategy and pass, then the place: rank and op; then the rule, and its text.
    proof.wrong = fmt::format("{} {}: rank {} op {}: {}: {}", plan.strategy, to_string(pass),
                              found[0].rank, found[0].op, found[0].rule, found[0].text);
  }
  return proof;
}

std::string first_wrong(const plan::Planner& planner,
                        const std::array<PassProof, kPasses.size()>& passes) {
  for (const PassProof& pass : passes) {
    if (!pass.wrong.empty()) return pass.wrong;
  }
  // All passes are exact by themselves. Later passes must also find the tiles that forward saves.
  for (int rank = 0; rank < planner.problem().world; ++rank) {
    const plan::RankProgram forward = runnable(planner, plan::Pass::Forward, rank);
    for (const plan::Pass later : {plan::Pass::Backward, plan::Pass::Replay}) {
      if (!plan::finds_saved(forward, runnable(planner, later, rank))) {
        return fmt::format("rank {}: {} does not find what forward saves", rank, to_string(later));
      }
    }
  }
  return "";
}

void make_current_change() {
  CurrentChange::of_this_process();
}

ChangedPrograms::ChangedPrograms(Change change) {
  CurrentChange::of_this_process().set(std::make_shared<const Change>(std::move(change)));
}

ChangedPrograms::~ChangedPrograms() {
  CurrentChange::of_this_process().set(nullptr);
}

}  // namespace armillary::proof
