// grid_plan.h: plans of any grid, also of grids that no strategy has a name for. Tests only.
#pragma once

#include <algorithm>

#include "armillary/plan/strategies/grid.h"

namespace armillary::plan {

/// The plan of a grid as it is given: its rings are not shortened.
inline Plan plan_of(const Problem& problem, const Grid& grid, Pass pass) {
  Plan plan{.problem = problem, .strategy = "grid", .pass = pass, .blocks = make_blocks(problem)};
  const Visibility visibility(problem.mask, plan.blocks);
  const Needs needs(grid, plan.blocks, visibility);
  const GridRoutes routes(grid);
  for (Rank rank = 0; rank < problem.world; ++rank) {
    plan.ranks.push_back(grid_program({problem, plan.blocks, needs, grid}, routes, pass, rank));
  }
  return plan;
}

/// Bytes and pairs of all ranks together; `peak_slot_bytes` and `steps` are the maximum over ranks.
inline Traffic traffic_of_all(const Plan& plan) {
  Traffic all;
  for (const RankProgram& program : plan.ranks) {
    const Traffic one = traffic(plan.problem, plan.blocks, program);
    all.sent_bytes += one.sent_bytes;
    all.received_bytes += one.received_bytes;
    all.visible_pairs += one.visible_pairs;
    all.peak_slot_bytes = std::max(all.peak_slot_bytes, one.peak_slot_bytes);
    all.steps = std::max(all.steps, one.steps);
  }
  return all;
}

}  // namespace armillary::plan
