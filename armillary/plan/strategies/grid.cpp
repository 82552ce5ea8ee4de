#include "armillary/plan/strategies/grid.h"

#include <algorithm>

#include "armillary/core/checked.h"

namespace armillary::plan {

Place place_of(const Grid& grid, Rank rank) {
  return {.h = rank % grid.u, .i = rank / grid.u / grid.rk, .j = rank / grid.u % grid.rk};
}

Rank rank_of(const Grid& grid, Place place) {
  return (place.i * grid.rk + place.j) * grid.u + place.h;
}

Heads head_group(const Problem& problem, const Grid& grid, int h) {
  return {static_cast<int>(piece_begin(problem.heads, grid.u, h)),
          static_cast<int>(piece_begin(problem.heads, grid.u, h + 1))};
}

Needs::Needs(const Grid& grid, const Blocks& blocks, const BlockAreas& areas)
    : grid_(grid),
      areas_(&areas),
      q_blocks_(static_cast<std::size_t>(grid.rq) * grid.rk),
      kv_blocks_(static_cast<std::size_t>(grid.rq) * grid.rk),
      row_needs_(blocks.kv.size() * grid.rq),
      column_needs_(blocks.q.size() * grid.rk),
      kv_used_(blocks.kv.size()),
      q_used_(blocks.q.size()) {
  const auto q_count = static_cast<int>(blocks.q.size());
  const auto kv_count = static_cast<int>(blocks.kv.size());
  for (int q = 0; q < q_count; ++q) q_blocks_[blocks.q[q].owner / grid.u].push_back(q);
  for (int k = 0; k < kv_count; ++k) kv_blocks_[blocks.kv[k].owner / grid.u].push_back(k);
  for (int q = 0; q < q_count; ++q) {
    const int i = place_of(grid, blocks.q[q].owner).i;
    for (int k = 0; k < kv_count; ++k) {
      if (!areas.visible(q, k)) continue;
      kv_used_[k] = q_used_[q] = true;
      row_needs_[static_cast<std::size_t>(k) * grid.rq + i] = true;
      const int j = place_of(grid, blocks.kv[k].owner).j;
      column_needs_[static_cast<std::size_t>(q) * grid.rk + j] = true;
    }
  }
}

Grid with_shorter_ring(const Problem& problem, const Blocks& blocks, const Needs& needs, Grid grid,
                       Pass pass) {
  if (grid.column == Movement::Gather) return grid;
  // Tokens times hops, forward: to the farthest member that needs them, and from the nearest one on
  // all the way round. Going back, the two change places.
  std::int64_t out = 0;
  std::int64_t home = 0;
  for (int kv = 0; kv < static_cast<int>(blocks.kv.size()); ++kv) {
    const Block& block = blocks.kv[kv];
    const int origin = place_of(grid, block.owner).i;
    int nearest = grid.rq;
    int farthest = 0;
    for (int distance = 1; distance < grid.rq; ++distance) {
      if (!needs.row_needs((origin + distance) % grid.rq, kv)) continue;
      nearest = std::min(nearest, distance);
      farthest = distance;
    }
    out += block.tokens() * farthest;
    home += block.tokens() * (grid.rq - nearest);
  }
  // K, V are in the input dtype and sums in the accumulator's: in backward, sums weigh more.
  const bool wider_sums = bytes_of(accumulator(problem.dtype)) > bytes_of(problem.dtype);
  const bool back = pass == Pass::Forward ? home < out : wider_sums && out < home;
  grid.column = back ? Movement::RingBack : Movement::Ring;
  return grid;
}

}  // namespace armillary::plan
