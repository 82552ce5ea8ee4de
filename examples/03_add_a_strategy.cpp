// A new strategy, registered, printed and proved; and a wrong one, which the proof refuses.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "armillary/plan/strategies/presets.h"
#include "armillary/plan/text.h"
#include "armillary/plan/verify/verify.h"

using namespace armillary::plan;

/// K, V stay; queries go to all ranks, partial results to their owners: one column per rank.
PassGrids pass_q(const Problem& problem, const Strategy&) {
  return {{.rk = problem.world, .row = Movement::Gather}};
}

/// The same without the first send of rank 1, so its receiver waits for ever.
struct Forgetful : Schedule {
  explicit Forgetful(std::unique_ptr<const Schedule> good) : good(std::move(good)) {}
  RankProgram program(Pass pass, Rank rank) const override {
    RankProgram program = good->program(pass, rank);
    const auto sends = [](const Op& op) { return op.kind == OpKind::Send; };
    std::vector<Op>& ops = program.ops;
    if (rank == 1) ops.erase(std::find_if(ops.begin(), ops.end(), sends));
    return program;
  }
  std::unique_ptr<const Schedule> good;
};

Plan plan_of(const char* strategy, Pass pass, int world = 4, const char* mask = "causal") {
  const Problem problem{
      .world = world, .mask = parse_mask(mask, {100, 100}), .layout = parse_layout("contiguous")};
  return make_plan(problem, parse_strategy(strategy), pass);
}

int main() {
  StrategyDefinition mine = grid_strategy({.name = "pass_q"}, pass_q);
  add_strategy(mine);
  mine.info.name = "forgetful";
  mine.schedule = [good = mine.schedule](const PlanContext& context, const Strategy& strategy) {
    return std::make_unique<const Forgetful>(good(context, strategy));
  };
  add_strategy(mine);

  fmt::print("{}\n", to_string(plan_of("pass_q", Pass::Forward)));
  for (const int world : {1, 2, 3, 5, 8}) {
    for (const char* mask : {"full", "causal", "window:left=9,right=0", "documents:30,1,69"}) {
      const Plan forward = plan_of("pass_q", Pass::Forward, world, mask);
      const Plan backward = plan_of("pass_q", Pass::Backward, world, mask);
      if (!verify(forward).empty() || !verify(backward).empty()) return 1;
      if (!verify_saved(forward, backward).empty()) return 1;
    }
  }
  const Plan broken = plan_of("forgetful", Pass::Forward);
  const std::vector<Diagnostic> diagnostics = verify(broken);
  fmt::print("{}",
             diagnostics.empty() ? "the slip was not caught" : to_string(broken, &diagnostics[0]));
  return diagnostics.empty() ? 1 : 0;
}
