#include "armillary/plan/strategies/startrail_teams.h"

namespace armillary::plan {

TeamContext::TeamContext(const PlanContext& given, const Teams& of)
    : context(given),
      teams(of),
      q(of, given.blocks.q),
      kv(of, given.blocks.kv),
      team_route(Movement::Gather, of.c),
      ring_routes{Route(Movement::Ring, of.group_size()), Route(Movement::Ring, of.group_size())} {
  for (int i = 0; i < static_cast<int>(given.blocks.q.size()); ++i) {
    for (int j = 0; j < static_cast<int>(given.blocks.kv.size()); ++j) {
      if (!given.areas.visible(i, j)) continue;
      q.meet(i, kv.team_of(j));
      kv.meet(j, q.team_of(i));
    }
  }
  for (const Pass pass : {Pass::Forward, Pass::Backward}) {
    const auto bytes = [&](Movement way) { return sent_on_rings(pass, way); };
    ring_routes.at(static_cast<std::size_t>(pass)) = Route(shorter_ring(bytes), teams.group_size());
  }
}

std::vector<Tensor> walkers(Pass pass) {
  if (pass == Pass::Forward) return {Tensor::K, Tensor::V};
  return {Tensor::Q, Tensor::DOut, Tensor::Lse, Tensor::Delta};
}

std::int64_t TeamContext::sent_on_rings(Pass pass, Movement way) const {
  const Problem& problem = context.problem;
  const auto token = [&](Tensor tensor, bool sum) {
    const Tile tile{.tensor = tensor, .partial = sum, .narrow = sum && problem.narrows_sums()};
    return (is_kv(tensor) ? problem.kv_heads : problem.heads) * dim_of(problem, tensor) *
           bytes_of(dtype_of(problem, tile));
  };
  std::int64_t there = 0;
  for (const Tensor tensor : walkers(pass)) there += token(tensor, false);
  const std::int64_t home = pass == Pass::Forward ? 0 : token(Tensor::DQ, true);
  const std::vector<Block>& blocks = pass == Pass::Forward ? context.blocks.kv : context.blocks.q;
  const Route route(way, teams.group_size());
  std::int64_t bytes = 0;
  for (int b = 0; b < static_cast<int>(blocks.size()); ++b) {
    for (int group = 0; group < teams.c; ++group) {
      const int origin = walks(pass).team_of(b) / teams.c;
      const auto met = [&](int x) {
        return walks(pass).meets_team(b, group * teams.group_size() + x);
      };
      bytes += blocks[b].tokens() * (there * count_hops(route.spread_hops(origin, met)) +
                                     home * count_hops(route.collect_hops(origin, met)));
    }
  }
  return bytes;
}

}  // namespace armillary::plan
