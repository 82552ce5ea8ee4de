// StarTrail (WallFacer): teams of C ranks, and K, V that walk C-times-shorter rings. It is no grid:
// teams gather, tiles hop to the rings, walk there, and partial results return in the team. So it
// has a Schedule of its own (startrail_teams.h, startrail_program.cpp).
#include <algorithm>
#include <cmath>

#include "armillary/core/error.h"
#include "armillary/plan/strategies/presets.h"
#include "armillary/plan/strategies/startrail_teams.h"

namespace armillary::plan {
namespace {

/// Keeps what all ranks share: teams, blocks by team, routes.
class StarTrailSchedule : public Schedule {
 public:
  StarTrailSchedule(const PlanContext& context, const Teams& teams) : shared_(context, teams) {}
  RankProgram program(Pass pass, Rank rank) const override {
    return startrail_program(shared_, pass, rank);
  }

  // A rotation that keeps teams and rings adds one number to a rank's member, place in its group
  // and group. The hop exchanges these three digits, so they must have one size: a group has one
  // team, or as many as a team has members (armillary/plan/fold.md).
  Rotations rotations(Pass /*pass*/) const override {
    const int c = shared_.teams.c;
    const int group = shared_.teams.group_size();
    if (c == 1) return {.digits = {group}, .generators = {{0}}};
    if (group == 1) return {.digits = {c, c}, .generators = {{0, 1}}};
    if (group == c) return {.digits = {c, c, c}, .generators = {{0, 1, 2}}};
    return {};
  }

 private:
  TeamContext shared_;
};

/// The teams that the options ask for. C^2 must divide the world: P/C teams fall into C groups.
/// @throws InvalidArgument otherwise, with the nearest C below.
Teams teams_of(const Problem& problem, const StartrailOptions& options) {
  const int c = options.c;
  if (problem.world % (std::int64_t{c} * c) != 0) {
    int nearest = std::min(c, static_cast<int>(std::sqrt(problem.world)));
    while (problem.world % (nearest * nearest) != 0) --nearest;
    fail<InvalidArgument>("startrail: c={} with world {}; c^2 must divide world; nearest: c={}", c,
                          problem.world, nearest);
  }
  return {.c = c, .teams = problem.world / c, .teams_inside = !options.rings_inside};
}

}  // namespace

StrategyDefinition startrail() {
  return {
      .info =
          {.name = "startrail",
           .keys = {number_key("c", "C", &StartrailOptions::c, kRequired),
                    choice_key("placement", &StartrailOptions::rings_inside,
                               {{"p2p_intra", true}, {"collect_intra", false}})},
           .summary = "teams of C gather Q,K,V; K,V walk sub-rings of P/C^2 steps",
           .paper = "StarTrail (WallFacer), arXiv:2407.00611, sections 3 and 4",
           .bytes = "4 N H (C - 1)/P in teams, 2 N H C/P first hop, 2 N H (1/C - C/P) on rings "
                    "forward, H = Dq = Dk",
           .differs =
               "lse starts at -inf, and the last ring step sends nothing. What the ring brings "
               "last meets the queries of one member after the other: C calls, so that partials "
               "leave meanwhile. Backward also moves dOut, Lse and "
               "Delta, which the paper leaves out. The team's "
               "gather of K, V is redundant (2 N H C/P words): `grid` at rk=C is the "
               "same without it. placement says what lies on neighbouring ranks: teams "
               "(collect_intra) or rings (p2p_intra).",
           .shortens_rings = true},
      .check = [](const Problem& problem,
                  const Strategy& strategy) { teams_of(problem, strategy.as<StartrailOptions>()); },
      .schedule =
          [](const PlanContext& context, const Strategy& strategy) {
            return std::make_unique<const StarTrailSchedule>(
                context, teams_of(context.problem, strategy.as<StartrailOptions>()));
          },
      .variants = erased<StartrailOptions>([](const Problem& problem) {
        std::vector<StartrailOptions> variants;
        for (int c = 2; c * c <= problem.world; ++c) {
          variants.push_back({.c = c});
          variants.push_back({.c = c, .rings_inside = true});
        }
        return variants;
      })};
}

}  // namespace armillary::plan
