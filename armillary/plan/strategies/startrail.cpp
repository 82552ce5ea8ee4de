// StarTrail (WallFacer): teams of C ranks, and K, V that walk C-times-shorter rings.
//
// Ranks are (team, member): P/C teams of C members. G = P/C^2 neighbouring teams are a group.
//
//   1. team     every member gathers its team's Q, K, V
//   2. hop      K, V of (t, a) to (a G + t / C, t mod C): one member seeds one group   (Algorithm
//   2)
//   3. ring     K, V walk among equal members of a group: G steps              (Algorithm 3)
//   4. team     partial outputs are reduce-scattered
//
// After 3, member a of every team has seen the keys of all teams t = a (mod C). Backward changes
// the sides: K, V stay with the team, and Q, dOut, Lse, Delta hop and walk; dQ walks behind them,
// hops back, and is reduce-scattered in the team, as dK and dV are.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/plan/strategies/axis.h"
#include "armillary/plan/strategies/presets.h"

namespace armillary::plan {
namespace {

constexpr Lane kWalkLane = 1;
constexpr Lane kWalkBackLane = 2;
constexpr Lane kTeamLane = 3;
constexpr Lane kTeamBackLane = 4;

struct Place2 {
  int team = 0;
  int member = 0;
  bool operator==(const Place2&) const = default;
};

/// The configuration of a world: who is in which team, where tiles hop to.
struct Teams {
  int c = 1;
  int teams = 1;
  bool teams_inside = true;  ///< Members of a team are neighbouring ranks; else rings are.

  int group_size() const { return teams / c; }
  Rank rank(Place2 place) const {
    return teams_inside ? place.team * c + place.member : place.member * teams + place.team;
  }
  Place2 place(Rank rank) const {
    return teams_inside ? Place2{rank / c, rank % c} : Place2{rank % teams, rank / teams};
  }
  Place2 hop_to(Place2 from) const {
    return {from.member * group_size() + from.team / c, from.team % c};
  }
  Place2 hop_from(Place2 to) const {
    return {to.team % group_size() * c + to.member, to.team / group_size()};
  }
};

/// Blocks of one side, Q or K, V, and the teams whose other side they meet.
class Side {
 public:
  Side(const Teams& teams, const std::vector<Block>& blocks) : teams_(teams), owned_(teams.teams) {
    meets_.resize(blocks.size() * static_cast<std::size_t>(teams.teams));
    owner_.reserve(blocks.size());
    for (int b = 0; b < static_cast<int>(blocks.size()); ++b) {
      owner_.push_back(teams.place(blocks[b].owner));
      owned_[owner_[b].team].push_back(b);
    }
  }
  void meet(int block, int team) { meets_[index(block, team)] = true; }
  int team_of(int block) const { return owner_[block].team; }

  const std::vector<int>& of_team(int team) const { return owned_[team]; }
  std::vector<int> of(Place2 place) const {
    return filter(owned_[place.team], [&](int b) { return owner_[b] == place; });
  }
  /// By block: its owner's number in the team; the ring member that begins with it, in the rings of
  /// equal members `member`. -1 for blocks of others.
  std::vector<int> members_of(int team) const {
    std::vector<int> members;
    for (const Place2& owner : owner_) members.push_back(owner.team == team ? owner.member : -1);
    return members;
  }
  std::vector<int> seeded_to(int member) const {
    std::vector<int> members;
    for (const Place2& owner : owner_) {
      members.push_back(owner.team % teams_.c == member ? owner.team / teams_.c : -1);
    }
    return members;
  }
  bool meets_team(int block, int team) const { return meets_[index(block, team)]; }
  /// Any team of the group; any team whose keys (queries in backward) come to these members.
  bool meets_group(int block, int group) const {
    const int first = group * teams_.group_size();
    return any(block, first, first + teams_.group_size(), 1);
  }
  bool meets_members(int block, int member) const {
    return any(block, member, teams_.teams, teams_.c);
  }
  /// Blocks of a team that a group needs: what hops and walks.
  std::vector<int> walking(int team, int group) const {
    return filter(owned_[team], [&](int b) { return meets_group(b, group); });
  }

 private:
  template <class Keep>
  static std::vector<int> filter(const std::vector<int>& blocks, const Keep& keep) {
    std::vector<int> kept;
    std::copy_if(blocks.begin(), blocks.end(), std::back_inserter(kept), keep);
    return kept;
  }
  bool any(int block, int begin, int end, int step) const {
    for (int team = begin; team < end; team += step) {
      if (meets_team(block, team)) return true;
    }
    return false;
  }
  std::size_t index(int block, int team) const {
    return static_cast<std::size_t>(block) * teams_.teams + team;
  }

  Teams teams_;
  std::vector<Place2> owner_;
  std::vector<std::vector<int>> owned_;
  std::vector<bool> meets_;
};

/// What all ranks share.
struct Shared {
  Shared(const PlanContext& given, const Teams& of)
      : context(given),
        teams(of),
        q(of, given.blocks.q),
        kv(of, given.blocks.kv),
        team_route(Movement::Gather, of.c),
        ring_routes{Route(Movement::Ring, of.group_size()),
                    Route(Movement::Ring, of.group_size())} {
    for (int i = 0; i < static_cast<int>(given.blocks.q.size()); ++i) {
      for (int j = 0; j < static_cast<int>(given.blocks.kv.size()); ++j) {
        if (!given.areas.visible(i, j)) continue;
        q.meet(i, kv.team_of(j));
        kv.meet(j, q.team_of(i));
      }
    }
    for (const Pass pass : {Pass::Forward, Pass::Backward}) {
      const auto bytes = [&](Movement way) { return sent_on_rings(pass, way); };
      ring_routes.at(static_cast<std::size_t>(pass)) =
          Route(shorter_ring(bytes), teams.group_size());
    }
  }
  const Side& walks(Pass pass) const { return pass == Pass::Forward ? kv : q; }
  const Side& stays(Pass pass) const { return pass == Pass::Forward ? q : kv; }
  const Route& ring_route(Pass pass) const {
    return ring_routes.at(static_cast<std::size_t>(pass));
  }
  std::int64_t sent_on_rings(Pass pass, Movement way) const;

  PlanContext context;
  Teams teams;
  Side q;
  Side kv;
  Route team_route;
  std::array<Route, 2> ring_routes;  ///< By pass.
};

/// Forward K, V walk; backward Q and what its gradient needs, and dQ behind them.
std::vector<Tensor> walkers(Pass pass) {
  if (pass == Pass::Forward) return {Tensor::K, Tensor::V};
  return {Tensor::Q, Tensor::DOut, Tensor::Lse, Tensor::Delta};
}

/// Bytes that all rings together move if they go this way.
std::int64_t Shared::sent_on_rings(Pass pass, Movement way) const {
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

/// One rank in one pass: a side that stays with its team and a side that walks.
class TeamProgram {
 public:
  TeamProgram(const Shared& shared, Rank rank, Pass pass)
      : shared_(shared),
        teams_(shared.teams),
        me_(shared.teams.place(rank)),
        stay_(shared.stays(pass)),
        walk_(shared.walks(pass)),
        ring_route_(shared.ring_route(pass)),
        builder_(shared.context.problem, shared.context.blocks, rank),
        stay_live_(shared.team_route, shared.team_route, stay_.members_of(me_.team),
                   [this](int a, int block) { return stay_.meets_members(block, a); }),
        walk_live_(shared.team_route, shared.team_route, walk_.members_of(me_.team),
                   [this](int a, int block) { return walk_.meets_group(block, a); }),
        ring_live_(ring_route_, ring_route_, walk_.seeded_to(me_.member),
                   [this](int x, int block) {
                     const int group = me_.team / teams_.group_size();
                     return walk_.meets_team(block, group * teams_.group_size() + x);
                   }),
        stay_team_(builder_, stay_options(heads(pass == Pass::Forward ? Tensor::Q : Tensor::K))),
        walk_team_(builder_, walk_options(heads(pass == Pass::Forward ? Tensor::K : Tensor::Q))),
        ring_(builder_, ring_options(heads(pass == Pass::Forward ? Tensor::K : Tensor::Q))) {}

  RankProgram forward();
  RankProgram backward();

 private:
  Heads heads(Tensor tensor) const {
    const Problem& problem = shared_.context.problem;
    return {0, is_kv(tensor) ? problem.kv_heads : problem.heads};
  }
  std::vector<int> own(Tensor tensor) const {
    return (is_kv(tensor) ? shared_.kv : shared_.q).of(me_);
  }
  int input(Tensor tensor) { return builder_.input(tensor, heads(tensor), own(tensor)); }
  int output(Tensor tensor) { return builder_.output(tensor, heads(tensor), own(tensor)); }
  int saved(Tensor tensor) { return builder_.saved(tensor, heads(tensor), own(tensor)); }
  Axis::Options stay_options(Heads heads);
  Axis::Options walk_options(Heads heads);
  Axis::Options ring_options(Heads heads);
  int hop(int step, int team_tile);
  void hop_back(int step, const View& ring_sum, int team_sum);
  template <class Attend>
  void for_each_arrival(const std::vector<Held>& ring, const Attend& attend) const;
  bool visible(int stay_block, int walk_block) const;

  const Shared& shared_;
  const Teams& teams_;
  Place2 me_;
  const Side& stay_;
  const Side& walk_;
  const Route& ring_route_;
  ProgramBuilder builder_;
  LiveBlocks stay_live_;
  LiveBlocks walk_live_;
  LiveBlocks ring_live_;
  Axis stay_team_;
  Axis walk_team_;
  Axis ring_;
};

Axis::Options TeamProgram::stay_options(Heads heads) {
  return {.route = &shared_.team_route,
          .home = &shared_.team_route,
          .me = me_.member,
          .lane = kTeamLane,
          .back_lane = kTeamBackLane,
          .heads = heads,
          .one_call = true,
          .rank =
              [this](int a) {
                return teams_.rank({me_.team, a});
              },
          .blocks =
              [this](int a) {
                return stay_.of({me_.team, a});
              },
          .live = &stay_live_,
          .needs = [this](int block) { return stay_.meets_members(block, me_.member); }};
}

Axis::Options TeamProgram::walk_options(Heads heads) {
  Axis::Options options = stay_options(heads);
  options.blocks = [this](int a) { return walk_.of({me_.team, a}); };
  options.live = &walk_live_;
  options.needs = [this](int block) { return walk_.meets_group(block, me_.member); };
  return options;
}

/// Member x of the ring holds, when it begins, the tiles of team x C + (my member number).
Axis::Options TeamProgram::ring_options(Heads heads) {
  const int group = me_.team / teams_.group_size();
  const int first = group * teams_.group_size();
  return {
      .route = &ring_route_,
      .home = &ring_route_,
      .me = me_.team % teams_.group_size(),
      .lane = kWalkLane,
      .back_lane = kWalkBackLane,
      .heads = heads,
      .rank =
          [this, first](int x) {
            return teams_.rank({first + x, me_.member});
          },
      .blocks = [this, group](int x) { return walk_.walking(x * teams_.c + me_.member, group); },
      .live = &ring_live_,
      .needs = [this](int block) { return walk_.meets_team(block, me_.team); }};
}

/// The team's tile to the group that this member seeds; returns the tile that the ring begins with.
int TeamProgram::hop(int step, int team_tile) {
  if (teams_.hop_to(me_) == me_) return team_tile;
  const Place2 from = teams_.hop_from(me_);
  const int group = me_.team / teams_.group_size();
  const int arrived = builder_.tile(builder_[team_tile].tensor, false, builder_[team_tile].heads,
                                    walk_.walking(from.team, group));
  builder_.send(step, kWalkLane, teams_.rank(teams_.hop_to(me_)),
                builder_.part(team_tile, walk_.walking(me_.team, me_.member)));
  builder_.recv(step, kWalkLane, teams_.rank(from), builder_.whole(arrived));
  return arrived;
}

/// The sum that the ring made to the team whose tile walked; theirs is added to `team_sum`.
void TeamProgram::hop_back(int step, const View& ring_sum, int team_sum) {
  const std::vector<int> mine = walk_.walking(me_.team, me_.member);
  if (teams_.hop_to(me_) == me_) {
    builder_.compute(step, OpKind::Add,
                     {builder_.part(team_sum, mine), builder_.part(ring_sum.tile, mine)});
    return;
  }
  const Place2 from = teams_.hop_from(me_);
  const Tile& sum = builder_[team_sum];
  const int arrived = builder_.arriving_sum(sum.tensor, sum.heads, mine);
  builder_.send_sum(
      step, kWalkBackLane, teams_.rank(from),
      builder_.part(ring_sum.tile, walk_.walking(from.team, me_.team / teams_.group_size())));
  builder_.recv(step, kWalkBackLane, teams_.rank(teams_.hop_to(me_)), builder_.whole(arrived));
  builder_.compute(step, OpKind::Add, {builder_.part(team_sum, mine), builder_.whole(arrived)});
}

bool TeamProgram::visible(int stay_block, int walk_block) const {
  const BlockAreas& areas = shared_.context.areas;
  return &stay_ == &shared_.q ? areas.visible(stay_block, walk_block)
                              : areas.visible(walk_block, stay_block);
}

/// What walks meets all that stays: `attend(held, stay blocks, walk blocks)`, those that see any.
template <class Attend>
void TeamProgram::for_each_arrival(const std::vector<Held>& ring, const Attend& attend) const {
  for (const Held& held : ring) {
    std::vector<int> stay;
    std::vector<int> walk;
    for (const int s : stay_.of_team(me_.team)) {
      if (std::any_of(held.needed.begin(), held.needed.end(),
                      [&](int w) { return visible(s, w); })) {
        stay.push_back(s);
      }
    }
    for (const int w : held.needed) {
      if (std::any_of(stay.begin(), stay.end(), [&](int s) { return visible(s, w); })) {
        walk.push_back(w);
      }
    }
    attend(held, stay, walk);
  }
}

RankProgram TeamProgram::forward() {
  const int k_home = input(Tensor::K);
  const int v_home = input(Tensor::V);
  const int q_home = input(Tensor::Q);
  for (const int tile : {q_home, k_home, v_home}) builder_.save(tile);
  // Each gather can begin when its projection is ready; K first, its way is longest.
  const bool alone = teams_.c == 1;
  const int start = alone ? 0 : 3;
  const std::vector<Held> k_team = walk_team_.spread({Tensor::K}, {k_home}, 0, 0);
  const std::vector<Held> v_team = walk_team_.spread({Tensor::V}, {v_home}, 0, alone ? 0 : 1);
  std::vector<Held> rows = stay_team_.spread({Tensor::Q}, {q_home}, 0, alone ? 0 : 2);
  const int k = hop(1, k_team[0].tiles[0]);
  const int v = hop(2, v_team[0].tiles[0]);

  const int last = start + ring_route_.last_usable();
  const auto ready = [last](int, int) { return last; };
  const std::vector<Held> ring = ring_.spread(walkers(Pass::Forward), {k, v}, start, start);
  stay_team_.open_sums(rows, {Tensor::Out, Tensor::Lse}, ready);
  const Held& q = rows[0];
  for_each_arrival(ring, [&](const Held& held, const std::vector<int>& q_blocks,
                             const std::vector<int>& kv_blocks) {
    builder_.compute(held.usable, OpKind::Attend,
                     {builder_.part(q.tiles[0], q_blocks), builder_.part(held.tiles[0], kv_blocks),
                      builder_.part(held.tiles[1], kv_blocks), builder_.part(q.sums[0], q_blocks),
                      builder_.part(q.sums[1], q_blocks)});
  });

  const int complete = stay_team_.collect(rows, ready);
  const int out = output(Tensor::Out);
  const int lse = shared_.context.problem.return_lse
                      ? output(Tensor::Lse)
                      : builder_.tile(Tensor::Lse, false, heads(Tensor::Lse), own(Tensor::Lse));
  builder_.compute(complete, OpKind::Finish,
                   {builder_.whole(out), builder_.whole(lse), stay_team_.own_sum(rows, 0),
                    stay_team_.own_sum(rows, 1)});
  builder_.save(out);
  builder_.save(lse);
  return builder_.finish();
}

RankProgram TeamProgram::backward() {
  const int q_home = saved(Tensor::Q);
  const int k_home = saved(Tensor::K);
  const int v_home = saved(Tensor::V);
  const int out = saved(Tensor::Out);
  const int lse = saved(Tensor::Lse);
  const int dout = input(Tensor::DOut);
  const int delta = builder_.tile(Tensor::Delta, false, heads(Tensor::Delta), own(Tensor::Delta));
  builder_.compute(0, OpKind::Delta,
                   {builder_.whole(delta), builder_.whole(dout), builder_.whole(out)});
  const int start = teams_.c == 1 ? 1 : 3;
  std::vector<Held> stay = stay_team_.spread({Tensor::K, Tensor::V}, {k_home, v_home}, 0, 0);
  const std::vector<Tensor> walking = walkers(Pass::Backward);
  std::vector<Held> team = walk_team_.spread(walking, {q_home, dout, lse, delta}, 0, 1);
  std::vector<int> tiles;
  for (const int tile : team[0].tiles) tiles.push_back(hop(2, tile));

  const int last = start + ring_route_.last_usable();
  const auto stay_ready = [last](int, int) { return last; };
  const auto ring_ready = [&, start](int member, int origin) {
    return start + ring_route_.usable(member, origin);
  };
  std::vector<Held> ring = ring_.spread(walking, tiles, start, start);
  ring_.open_sums(ring, {Tensor::DQ}, ring_ready);
  stay_team_.open_sums(stay, {Tensor::DK, Tensor::DV}, stay_ready);
  const Held& kv = stay[0];
  for_each_arrival(ring, [&](const Held& held, const std::vector<int>& kv_blocks,
                             const std::vector<int>& q_blocks) {
    const auto q_view = [&](int tile) { return builder_.part(tile, q_blocks); };
    const auto kv_view = [&](int tile) { return builder_.part(tile, kv_blocks); };
    builder_.compute(held.usable, OpKind::AttendGrad,
                     {q_view(held.tiles[0]), kv_view(kv.tiles[0]), kv_view(kv.tiles[1]),
                      q_view(held.tiles[1]), q_view(held.tiles[2]), q_view(held.tiles[3]),
                      q_view(held.sums[0]), kv_view(kv.sums[0]), kv_view(kv.sums[1])});
  });

  // dQ: along the ring, back over the hop, and over the team. dK, dV: over the team.
  const int back = ring_.collect(ring, ring_ready) + 1;
  const auto walk_ready = [back](int, int) { return back; };
  walk_team_.open_sums(team, {Tensor::DQ}, walk_ready);
  hop_back(back, ring_.own_sum(ring, 0), team[0].sums[0]);
  const int dq_step = walk_team_.collect(team, walk_ready);
  const int kv_step = stay_team_.collect(stay, stay_ready);
  builder_.compute(dq_step, OpKind::Copy,
                   {builder_.whole(output(Tensor::DQ)), walk_team_.own_sum(team, 0)});
  for (int t = 0; t < 2; ++t) {
    const int home = output(t == 0 ? Tensor::DK : Tensor::DV);
    builder_.compute(kv_step, OpKind::Copy, {builder_.whole(home), stay_team_.own_sum(stay, t)});
  }
  return builder_.finish();
}

class StarTrailSchedule : public Schedule {
 public:
  StarTrailSchedule(const PlanContext& context, const Teams& teams) : shared_(context, teams) {}
  RankProgram program(Pass pass, Rank rank) const override {
    TeamProgram program(shared_, rank, pass);
    return pass == Pass::Forward ? program.forward() : program.backward();
  }

 private:
  Shared shared_;
};

Teams teams_of(const Problem& problem, const Strategy& strategy) {
  const int c = number(strategy, "c");
  if (problem.world % (std::int64_t{c} * c) != 0) {
    int nearest = std::min(c, static_cast<int>(std::sqrt(problem.world)));
    while (problem.world % (nearest * nearest) != 0) --nearest;
    fail<InvalidArgument>("startrail: c={} with world {}; c^2 must divide world; nearest: c={}", c,
                          problem.world, nearest);
  }
  return {
      .c = c, .teams = problem.world / c, .teams_inside = !has(strategy, "placement", "p2p_intra")};
}

}  // namespace

StrategyDefinition startrail() {
  return {
      .info = {.name = "startrail",
               .keys = {{"c", "C", true}, {"placement", "p2p_intra|collect_intra"}},
               .summary = "teams of C gather Q,K,V; K,V walk sub-rings of P/C^2 steps",
               .paper = "StarTrail (WallFacer), arXiv:2407.00611, sections 3 and 4",
               .bytes = "4 N H (C - 1)/P in teams, 2 N H C/P first hop, 2 N H (1/C - C/P) on rings "
                        "forward, H = Dq = Dk",
               .differs =
                   "lse starts at -inf, and the last ring step sends nothing. Sub-rings turn "
                   "to the side that sends less with the mask. Backward also moves dOut, Lse and "
                   "Delta, which the paper leaves out. The team's "
                   "gather of K, V is redundant (2 N H C/P words): `grid` at rk=C is the "
                   "same without it. placement says what lies on neighbouring ranks: teams "
                   "(collect_intra) or rings (p2p_intra)."},
      .check = [](const Problem& problem,
                  const Strategy& strategy) { teams_of(problem, strategy); },
      .schedule =
          [](const PlanContext& context, const Strategy& strategy) {
            return std::make_unique<const StarTrailSchedule>(context,
                                                             teams_of(context.problem, strategy));
          },
      .variants =
          [](const Problem& problem) {
            std::vector<std::map<std::string, std::string>> variants;
            for (int c = 2; c * c <= problem.world; ++c) {
              variants.push_back({{"c", std::to_string(c)}});
            }
            return variants;
          }};
}

}  // namespace armillary::plan
