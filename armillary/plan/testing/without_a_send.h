// without_a_send.h: a strategy that was added and whose plan is wrong: rank 1 lacks its first send.
// Tests only.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/strategies/presets.h"

namespace armillary::plan::testing {

/// The schedule of another strategy without the first send of rank 1 in some passes.
struct WithoutASend : Schedule {
  WithoutASend(std::unique_ptr<const Schedule> whole, std::vector<Pass> broken)
      : whole(std::move(whole)), broken(std::move(broken)) {}
  RankProgram program(Pass pass, Rank rank) const override {
    RankProgram program = whole->program(pass, rank);
    const auto sends = [](const Op& op) { return op.kind == OpKind::Send; };
    if (rank == 1 && std::ranges::find(broken, pass) != broken.end()) {
      program.ops.erase(std::ranges::find_if(program.ops, sends));
    }
    return program;
  }
  std::unique_ptr<const Schedule> whole;
  std::vector<Pass> broken;
};

/// Adds such a strategy, which gathers K and V, to the registry; it refuses other worlds than
/// `world`, if that is not 0, so that it is not in the way of other tests of the process.
inline void add_strategy_without_a_send(const std::string& name, const std::vector<Pass>& broken,
                                        int world = 0) {
  StrategyDefinition wrong =
      grid_strategy({.name = name}, [world](const Problem& problem, const Strategy&) {
        if (world > 0 && problem.world != world) {
          fail<InvalidArgument>("a world of {}; {} is required", problem.world, world);
        }
        return PassGrids{{.rq = problem.world, .column = Movement::Gather}};
      });
  wrong.schedule = [whole = wrong.schedule, broken](const PlanContext& context,
                                                    const Strategy& strategy) {
    return std::make_unique<const WithoutASend>(whole(context, strategy), broken);
  };
  add_strategy(wrong);
}

}  // namespace armillary::plan::testing
