// text.cpp: a plan in text is its programs in text (program/grid.h), with the sizes of attention.
#include "armillary/plan/text.h"

namespace armillary::plan {
namespace {

/// The programs of a plan as the printer of the machine reads them.
struct PlanWorld {
  explicit PlanWorld(const Plan& plan)
      : measures(measures_of(plan.problem, plan.blocks)),
        world{measures, plan.ranks, plan.problem.world} {}
  PlanWorld(const PlanWorld&) = delete;
  PlanWorld& operator=(const PlanWorld&) = delete;
  Measures measures;
  World world;
};

}  // namespace

std::vector<GridWord> grid_words(const Plan& plan, Rank rank) {
  return grid_words(PlanWorld(plan).world, rank);
}

std::string to_string(const Plan& plan, Rank rank, const Op& op) {
  return to_string(PlanWorld(plan).world, rank, op);
}

std::string to_string(const Plan& plan, const Diagnostic* at) {
  return to_string(PlanWorld(plan).world, at);
}

}  // namespace armillary::plan
