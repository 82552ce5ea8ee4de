// presets.cpp: the schedule of a pair of grids, and the checks that presets share.
//
// A GridPass holds what all ranks of one pass share: who needs which block, the grid with its rings
// shortened, its routes. Making the program of one rank then needs no more shared work.
#include "armillary/plan/strategies/presets.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"

namespace armillary::plan {
namespace {

/// A grid in one pass, and everything that its ranks share. `needs` belongs to the grid as given:
/// shorter rings do not change who needs a block.
struct GridPass {
  GridPass(const PlanContext& context, const Grid& shape, Pass which)
      : context(context),
        pass(which),
        needs(shape, context.blocks, context.visibility),
        grid(with_shorter_rings(context.blocks, needs, shape)),
        routes(grid) {}
  RankProgram program(Rank rank) const {
    return grid_program({context.problem, context.blocks, needs, grid}, routes, pass, rank);
  }
  std::int64_t bytes() const {
    return sent_bytes(context.problem, context.blocks, needs, grid, pass);
  }
  PlanContext context;
  Pass pass;
  Needs needs;
  Grid grid;
  GridRoutes routes;
};

/// The first of the grids that sends least in this pass.
GridPass cheapest(const PlanContext& context, const std::vector<Grid>& grids, Pass pass) {
  std::vector<GridPass> passes;
  passes.reserve(grids.size());
  for (const Grid& grid : grids) passes.emplace_back(context, grid, pass);
  // One candidate need not be counted.
  if (passes.size() == 1) return std::move(passes[0]);
  return std::move(*std::min_element(
      passes.begin(), passes.end(),
      [](const GridPass& a, const GridPass& b) { return a.bytes() < b.bytes(); }));
}

/// A strategy made of grids, for one problem.
class GridSchedule : public Schedule {
 public:
  GridSchedule(const PlanContext& context, const PassGrids& grids)
      : forward_(context, grids.forward, Pass::Forward),
        backward_(cheapest(context, grids.backward, Pass::Backward)) {}

  RankProgram program(Pass pass, Rank rank) const override {
    return (pass == Pass::Forward ? forward_ : backward_).program(rank);
  }

  Rotations rotations(Pass pass) const override {
    return plan::rotations((pass == Pass::Forward ? forward_ : backward_).grid);
  }

 private:
  GridPass forward_;
  GridPass backward_;
};

}  // namespace

std::vector<StrategyDefinition> named_strategies() {
  return {ring(),      allgather(),   ulysses(),   usp(),  double_ring(), bidirectional_ring(),
          tokenring(), attention2d(), startrail(), grid(), automatic()};
}

std::unique_ptr<const Schedule> grid_schedule(const PlanContext& context, const PassGrids& grids) {
  return std::make_unique<const GridSchedule>(context, grids);
}

PassGrids with_sides(const Grid& forward, BackwardSide backward) {
  if (backward == BackwardSide::Kv) return forward;
  // Cheaper: forward's grid is first, so it is taken if both send the same.
  if (backward == BackwardSide::Q) return {forward, {sides_exchanged(forward)}};
  return {forward, {forward, sides_exchanged(forward)}};
}

/// `check` and `schedule` both call `grids`: once for its errors, once for its value.
StrategyDefinition grid_strategy(
    StrategyInfo info, const std::function<PassGrids(const Problem&, const Strategy&)>& grids) {
  return {.info = std::move(info),
          .check = [grids](const Problem& problem,
                           const Strategy& strategy) { grids(problem, strategy); },
          .schedule =
              [grids](const PlanContext& context, const Strategy& strategy) {
                return grid_schedule(context, grids(context.problem, strategy));
              }};
}

std::vector<int> inner_divisors(int n) {
  std::vector<int> divisors;
  for (int d = 2; d < n; ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  return divisors;
}

void require_divides_world(const Problem& problem, const KeyNumber& key) {
  if (problem.world % key.value == 0) return;
  fail<InvalidArgument>("{}: {}={} with world {}; {} must divide world; nearest: {}={}",
                        key.strategy, key.key, key.value, problem.world, key.key, key.key,
                        nearest_divisor(problem.world, key.value));
}

void require_heads(const Problem& problem, int u, const Strategy& strategy) {
  if (u <= problem.heads) return;
  // The nearest legal choice is the largest divisor of the world that is at most the heads.
  int nearest = problem.heads;
  while (problem.world % nearest != 0) --nearest;
  fail<InvalidArgument>(
      "strategy: {} spreads heads {} ways but there {}; u must not exceed the "
      "heads; nearest: usp:u={}",
      to_string(strategy), u,
      problem.heads == 1 ? "is 1 query head" : fmt::format("are {} query heads", problem.heads),
      nearest);
}

}  // namespace armillary::plan
