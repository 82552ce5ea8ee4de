// Cuts shards into blocks. For each side of the mask (queries, keys): (1) list the runs of all
// shards as pieces; (2) collect the edges at which the need of another rank begins or ends, from
// the mask and the pieces of the other side; (3) cut every contiguous piece at the edges inside it,
// and join neighbours that the same ranks use.
#include "armillary/plan/blocks.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace armillary::plan {
namespace {

/// A run of a shard, before it is cut.
struct ShardRun {
  Rank owner = 0;
  Run run;
  Interval range() const { return {run.begin, run.last() + 1}; }
};

std::vector<ShardRun> pieces_of(const std::vector<Runs>& shards) {
  std::vector<ShardRun> pieces;
  for (Rank rank = 0; rank < static_cast<Rank>(shards.size()); ++rank) {
    for (const Run& run : shards[rank]) pieces.push_back({rank, run});
  }
  return pieces;
}

/// The mask seen from the side whose blocks are cut. `seen_by` maps positions of the other side to
/// positions of this side; `sees` tells whether tokens of the other side need a block of this side.
struct CutSide {
  const Mask& mask;
  bool keys;  ///< The blocks being cut are keys; else queries.

  std::vector<Interval> seen_by(Interval range) const {
    return keys ? mask.keys_of(range) : mask.queries_of(range);
  }
  bool sees(const Runs& user, const Runs& block) const {
    return keys ? !mask.empty(user, block) : !mask.empty(block, user);
  }
};

/// Begins and ends of the intervals that each piece of the other side sees, with the owner of that
/// piece, sorted by position. On the two sides of an edge the owner's need may differ.
std::vector<std::pair<std::int64_t, Rank>> edges(const CutSide& side,
                                                 const std::vector<ShardRun>& others) {
  std::vector<std::pair<std::int64_t, Rank>> cuts;
  for (const ShardRun& other : others) {
    for (const Interval& interval : side.seen_by(other.range())) {
      cuts.emplace_back(interval.begin, other.owner);
      cuts.emplace_back(interval.end, other.owner);
    }
  }
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

/// The ranks whose shard of the other side sees the block.
std::vector<Rank> users_of(const CutSide& side, const std::vector<Runs>& others,
                           const Runs& block) {
  std::vector<Rank> users;
  for (Rank rank = 0; rank < static_cast<Rank>(others.size()); ++rank) {
    if (side.sees(others[rank], block)) users.push_back(rank);
  }
  return users;
}

/// Cuts a contiguous piece at the edges inside it that other ranks make, and joins neighbours with
/// the same users. A piece of several stripes stays whole: a rank that needs it needs all stripes.
void cut(const ShardRun& piece, const CutSide& side,
         const std::vector<std::pair<std::int64_t, Rank>>& cuts, const std::vector<Runs>& others,
         std::vector<Block>& out) {
  const Interval range = piece.range();
  // Edges strictly inside the piece, without those of its own rank: its own need moves nothing.
  std::vector<std::int64_t> ends;
  if (piece.run.step == 1) {
    auto edge = std::upper_bound(cuts.begin(), cuts.end(),
                                 std::pair(range.begin, static_cast<Rank>(others.size())));
    for (; edge != cuts.end() && edge->first < range.end; ++edge) {
      if (edge->second != piece.owner && (ends.empty() || ends.back() != edge->first)) {
        ends.push_back(edge->first);
      }
    }
  }
  if (ends.empty()) {
    out.push_back({piece.owner, {piece.run}});
    return;
  }
  // A part with the same users as the part before it extends that block.
  ends.push_back(range.end);
  std::int64_t begin = range.begin;
  std::vector<Rank> users_before;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const Run run{.begin = begin, .count = ends[i] - begin};
    std::vector<Rank> users = users_of(side, others, {run});
    if (i > 0 && users == users_before) {
      out.back().runs[0].count += run.count;
    } else {
      out.push_back({piece.owner, {run}});
    }
    users_before = std::move(users);
    begin = ends[i];
  }
}

/// The blocks of one side, by owner, then in the owner's memory order.
std::vector<Block> cut_all(const CutSide& side, const std::vector<Runs>& shards,
                           const std::vector<Runs>& others) {
  const auto cuts = edges(side, pieces_of(others));
  std::vector<Block> blocks;
  for (const ShardRun& piece : pieces_of(shards)) cut(piece, side, cuts, others, blocks);
  return blocks;
}

}  // namespace

Blocks make_blocks(const Problem& problem) {
  const Shards owned = shards(problem.layout, problem.mask, problem.world);
  return {.q = cut_all({problem.mask, false}, owned.q, owned.kv),
          .kv = cut_all({problem.mask, true}, owned.kv, owned.q)};
}

}  // namespace armillary::plan
