// startrail_test.cpp: plans of `startrail` against the papers' algorithms, written out: the teams,
// the places that K, V hop to, and the rings they walk.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/plan/testing/paper_plan.h"

namespace armillary::plan {
namespace {

/// The teams of a world, in the names of the paper: inter_dim (d_t) teams of intra_dim (d_a) ranks;
/// a rank is number `intra` (r_a) of team `inter` (r_t).
struct TeamRanks {
  int inter_dim;
  int intra_dim;
  bool teams_inside = true;

  int world() const { return inter_dim * intra_dim; }
  int inter(Rank rank) const { return teams_inside ? rank / intra_dim : rank % inter_dim; }
  int intra(Rank rank) const { return teams_inside ? rank % intra_dim : rank / inter_dim; }
  Rank rank(int inter, int intra) const {
    return teams_inside ? inter * intra_dim + intra : intra * inter_dim + inter;
  }
  int ring() const { return inter_dim / intra_dim; }
  std::string key() const {
    return "startrail:c=" + std::to_string(intra_dim) +
           (teams_inside ? "" : ",placement=p2p_intra");
  }
};

/// WallFacer, Algorithm 2, line by line.
Rank get_init_send(const TeamRanks& of, Rank rank) {
  const int team_group_size = of.inter_dim / of.intra_dim;
  const int target_team_group_rank = of.intra(rank);
  const int target_team = target_team_group_rank * team_group_size + of.inter(rank) / of.intra_dim;
  const int target_device_intra_rank = of.inter(rank) % of.intra_dim;
  return of.rank(target_team, target_device_intra_rank);
}

/// WallFacer, Algorithm 3: the next rank on the ring.
Rank get_next(const TeamRanks& of, Rank rank) {
  const int team_group_size = of.inter_dim / of.intra_dim;
  const int self_team_group_rank = of.inter(rank) / team_group_size;
  const int next_team_in_group =
      (of.inter(rank) + 1) % team_group_size + team_group_size * self_team_group_rank;
  return of.rank(next_team_in_group, of.intra(rank));
}

/// A number per rank.
using Table = std::vector<int>;

/// The ranks that K, V of each rank's team hop to, and the next ranks on the rings, worked out by
/// hand.
TEST(StarTrail, TablesOfEightGpusAndFourSubRings) {
  const TeamRanks eight{.inter_dim = 4, .intra_dim = 2};
  Table hops;
  Table next;
  for (Rank rank = 0; rank < 8; ++rank) {
    hops.push_back(get_init_send(eight, rank));
    next.push_back(get_next(eight, rank));
  }
  EXPECT_EQ(hops, (Table{0, 4, 1, 5, 2, 6, 3, 7}));
  EXPECT_EQ(next, (Table{2, 3, 0, 1, 6, 7, 4, 5}));
}

TEST(StarTrail, TableOfSixteenGpusInFourTeams) {
  const TeamRanks sixteen{.inter_dim = 4, .intra_dim = 4};
  Table hops;
  for (Rank rank = 0; rank < 16; ++rank) {
    hops.push_back(get_init_send(sixteen, rank));
    EXPECT_EQ(get_next(sixteen, rank), rank) << "a team is a group: no ring";
  }
  EXPECT_EQ(hops, (Table{0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15}));
}

/// The messages of all ranks together, phase by phase.
class Teamwork : public Written {
 public:
  explicit Teamwork(const TeamRanks& ranks) : of_(ranks) {}

  /// Every rank sends its own tiles to all members of its team.
  void gather(int step, const std::vector<Tensor>& tensors) {
    for (Rank rank = 0; rank < of_.world(); ++rank) {
      for (int member = 0; member < of_.intra_dim; ++member) {
        send(step, rank, of_.rank(of_.inter(rank), member), {rank}, tensors);
      }
    }
  }

  /// Every rank sends its team's tiles by Algorithm 2. Returns for each rank the team whose tiles
  /// it has then.
  Table hop(int step, const std::vector<Tensor>& tensors) {
    Table has(of_.world());
    for (Rank rank = 0; rank < of_.world(); ++rank) {
      const Rank target = get_init_send(of_, rank);
      send(step, rank, target, team(of_.inter(rank)), tensors);
      has[target] = of_.inter(rank);
    }
    return has;
  }

  /// Tiles go from rank to rank by Algorithm 3, from `step` on. Returns for each iteration the team
  /// whose tiles each rank has.
  std::vector<Table> walk(int step, const Table& start, const std::vector<Tensor>& tensors) {
    std::vector<Table> has{start};
    for (int i = 1; i < of_.ring(); ++i) {
      Table next(of_.world());
      for (Rank rank = 0; rank < of_.world(); ++rank) {
        send(step + i - 1, rank, get_next(of_, rank), team(has.back()[rank]), tensors);
        next[get_next(of_, rank)] = has.back()[rank];
      }
      has.push_back(next);
    }
    return has;
  }

  std::vector<Rank> team(int inter) const {
    std::vector<Rank> members;
    members.reserve(of_.intra_dim);
    for (int a = 0; a < of_.intra_dim; ++a) members.push_back(of_.rank(inter, a));
    return members;
  }

 private:
  TeamRanks of_;
};

/// Algorithm 1: gather Q, K, V in the team, hop, walk. The tile that arrives last is attended by
/// the queries of one member after the other, the rank's own queries last, so that partial results
/// leave meanwhile (WallFacer 4.2.2).
Teamwork forward(const TeamRanks& of) {
  Teamwork written(of);
  const int c = of.intra_dim;
  const int start = c == 1 ? 0 : 3;
  if (c > 1) {
    written.gather(0, {Tensor::K});
    written.gather(1, {Tensor::V});
    written.gather(2, {Tensor::Q});
  }
  const Table hopped = written.hop(1, {Tensor::K});
  written.hop(2, {Tensor::V});
  const std::vector<Table> has = written.walk(start, hopped, {Tensor::K, Tensor::V});
  const int last = start + of.ring() - 1;
  for (Rank rank = 0; rank < of.world(); ++rank) {
    for (const Rank queries : written.team(of.inter(rank))) {
      const int delay = (of.intra(rank) - of.intra(queries) + c - 1) % c;
      for (int i = 0; i < of.ring(); ++i) {
        const int step = start + i == last ? last + delay : start + i;
        for (const Rank keys : written.team(has[i][rank])) {
          written.meetings.insert({step, rank, queries, keys});
        }
      }
      written.send(last + delay + 1, rank, queries, {queries}, {Tensor::Out, Tensor::Lse});
    }
  }
  return written;
}

std::vector<TeamRanks> shapes() {
  std::vector<TeamRanks> all;
  for (const auto& [world, c] :
       {std::pair(1, 1), std::pair(5, 1), std::pair(4, 2), std::pair(8, 2), std::pair(12, 2),
        std::pair(16, 2), std::pair(20, 2), std::pair(9, 3), std::pair(18, 3), std::pair(27, 3),
        std::pair(16, 4), std::pair(32, 4), std::pair(48, 4), std::pair(25, 5)}) {
    for (const bool teams_inside : {true, false}) all.push_back({world / c, c, teams_inside});
  }
  return all;
}

TEST(StarTrail, IsAlgorithms1To3) {
  for (const TeamRanks& of : shapes()) {
    SCOPED_TRACE(of.key() + ", world " + std::to_string(of.world()));
    expect_as_written(paper_plan(of.world(), of.key(), Pass::Forward), forward(of));
  }
}

/// In backward K, V stay with the team. The query side hops and walks the same ways; sums of dQ
/// walk behind it, and end with the reverse hop and a reduce-scatter in the team.
TEST(StarTrail, BackwardWalksTheSameWays) {
  const std::vector<Tensor> walking{Tensor::Q, Tensor::DOut, Tensor::Lse, Tensor::Delta};
  for (const TeamRanks& of : shapes()) {
    SCOPED_TRACE(of.key() + ", world " + std::to_string(of.world()));
    Teamwork written(of);
    written.gather(0, {Tensor::K, Tensor::V});
    written.gather(1, walking);
    written.walk(of.intra_dim == 1 ? 1 : 3, written.hop(2, walking), walking);
    Moves moves = moves_of(paper_plan(of.world(), of.key(), Pass::Backward));
    Moves home;
    for (const MovedBlock& moved : moves) {
      if (moved.tensor == Tensor::DQ)
        home.insert({0, moved.from, moved.to, Tensor::DQ, moved.owner});
    }
    std::erase_if(moves, [](const MovedBlock& moved) { return moved.tensor >= Tensor::DQ; });
    expect_same(moves, written.moves);

    Teamwork back(of);
    for (Rank rank = 0; rank < of.world(); ++rank) {
      const std::vector<Rank> team = back.team(of.inter(rank));
      Rank at = get_init_send(of, rank);
      back.send(0, at, rank, team, {Tensor::DQ});
      for (int i = 1; i < of.ring(); ++i) {
        at = get_next(of, at);
        back.send(0, at, get_next(of, at), team, {Tensor::DQ});
      }
      for (const Rank owner : team) back.send(0, rank, owner, {owner}, {Tensor::DQ});
    }
    expect_same(home, back.moves);
  }
}

/// P / C^2 iterations, the last in C calls.
TEST(StarTrail, StepsAndCalls) {
  for (const TeamRanks& of : shapes()) {
    SCOPED_TRACE(of.key() + ", world " + std::to_string(of.world()));
    const Plan plan = paper_plan(of.world(), of.key(), Pass::Forward);
    const int c = of.intra_dim;
    EXPECT_EQ(steps_of(plan), (c == 1 ? 0 : 3) + of.ring() - 1 + c);
    EXPECT_EQ(calls_of(plan), std::vector(of.world(), of.ring() - 1 + c));
  }
}

/// Keys of two teams are in memory: those that were gathered and hop, then the tile that is
/// attended and the one that arrives (WallFacer 4.6). Queries are those of the team.
TEST(StarTrail, LiveBlocks) {
  for (const TeamRanks& of : shapes()) {
    if (of.intra_dim == 1) continue;
    SCOPED_TRACE(of.key() + ", world " + std::to_string(of.world()));
    const Plan plan = paper_plan(of.world(), of.key(), Pass::Forward);
    EXPECT_EQ(live_blocks_of(plan, Tensor::K), 2 * of.intra_dim);
    EXPECT_EQ(live_blocks_of(plan, Tensor::Q), of.intra_dim);
  }
}

}  // namespace
}  // namespace armillary::plan
