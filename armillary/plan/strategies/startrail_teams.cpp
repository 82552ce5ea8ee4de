#include "armillary/plan/strategies/startrail_teams.h"

namespace armillary::plan {

TeamContext::TeamContext(const PlanContext& base, const Teams& of)
    : context(base),
      teams(of),
      q(of, base, MaskSide::Queries),
      kv(of, base, MaskSide::Keys),
      team_route(Movement::Gather, of.c),
      ring_routes{Route(Movement::Ring, of.group_size()), Route(Movement::Ring, of.group_size())} {
  // Rings go to the side on which tiles pass fewer members.
  for (const Pass pass : {Pass::Forward, Pass::Backward}) {
    const auto reach = [&](const Route& route) { return reach_on_rings(pass, route); };
    const int n = teams.group_size();
    ring_routes.at(static_cast<std::size_t>(pass)) = Route(shorter_ring(reach, n), n);
  }
}

std::vector<Tensor> walkers(Pass pass) {
  if (pass == Pass::Forward) return {Tensor::K, Tensor::V};
  return {Tensor::Q, Tensor::DOut, Tensor::Lse, Tensor::Delta};
}

/// Tiles of team t begin on the ring at its member t / c (see `hop_to`), in every group.
std::int64_t TeamContext::reach_on_rings(Pass pass, const Route& route) const {
  const TeamSide& side = walks(pass);
  const std::vector<Block>& blocks = pass == Pass::Forward ? context.blocks.kv : context.blocks.q;
  std::int64_t passed = 0;
  for (int b = 0; b < static_cast<int>(blocks.size()); ++b) {
    for (int group = 0; group < teams.c; ++group) {
      passed +=
          blocks[b].tokens() * route.reach(side.team_of(b) / teams.c, side.met_in_group(b, group));
    }
  }
  return passed;
}

}  // namespace armillary::plan
