// startrail_program.cpp: forward and backward of one rank of a team, from the axes it is on.
#include <algorithm>
#include <utility>

#include "armillary/plan/strategies/axis.h"
#include "armillary/plan/strategies/startrail_teams.h"

namespace armillary::plan {
namespace {

constexpr Lane kWalkLane = 1;
constexpr Lane kWalkBackLane = 2;
constexpr Lane kTeamLane = 3;
constexpr Lane kTeamBackLane = 4;

/// One rank in one pass: a side that stays with its team and a side that walks.
class TeamProgram {
 public:
  TeamProgram(const TeamContext& shared, Rank rank, Pass pass)
      : shared_(shared),
        teams_(shared.teams),
        me_(shared.teams.place(rank)),
        stay_(shared.stays(pass)),
        walk_(shared.walks(pass)),
        ring_route_(shared.ring_route(pass)),
        builder_(shared.context.problem, shared.context.blocks, rank),
        stay_team_(builder_, stay_options()),
        walk_team_(builder_, walk_options()),
        ring_(builder_, ring_options()) {}

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
  Axis::Options stay_options();
  Axis::Options walk_options();
  Axis::Options ring_options();
  /// All heads of what travels.
  std::vector<Held> spread(Axis& axis, const std::vector<Tensor>& tensors,
                           const std::vector<int>& tiles, int own_usable, int departure) const {
    return axis.spread(tensors, tiles, heads(tensors[0]),
                       {.own_usable = own_usable, .first = departure, .begin = departure});
  }
  int hop(int step, int team_tile);
  void hop_back(int step, const View& ring_sum, int team_sum);
  template <class Attend>
  void for_each_arrival(const std::vector<Held>& ring, int last, const Attend& attend) const;
  int turn(int member, int owner) const;
  bool visible(int stay_block, int walk_block) const;

  const TeamContext& shared_;
  const Teams& teams_;
  TeamPlace me_;
  const TeamSide& stay_;
  const TeamSide& walk_;
  const Route& ring_route_;
  ProgramBuilder builder_;
  Axis stay_team_;
  Axis walk_team_;
  Axis ring_;
};

Axis::Options TeamProgram::stay_options() {
  return {.route = &shared_.team_route,
          .home = &shared_.team_route,
          .me = me_.member,
          .lane = kTeamLane,
          .back_lane = kTeamBackLane,
          .gathered = Gathered::Whole,
          .rank =
              [this](int a) {
                return teams_.rank({me_.team, a});
              },
          .blocks =
              [this](int a) {
                return stay_.of({me_.team, a});
              },
          .needs = [this](int a, int block) { return stay_.meets_members(block, a); }};
}

Axis::Options TeamProgram::walk_options() {
  Axis::Options options = stay_options();
  options.blocks = [this](int a) { return walk_.of({me_.team, a}); };
  options.needs = [this](int a, int block) { return walk_.meets_group(block, a); };
  return options;
}

/// Member x of the ring holds, when it begins, the tiles of team x C + (my member number).
Axis::Options TeamProgram::ring_options() {
  const int group = me_.team / teams_.group_size();
  const int first = group * teams_.group_size();
  return {
      .route = &ring_route_,
      .home = &ring_route_,
      .me = me_.team % teams_.group_size(),
      .lane = kWalkLane,
      .back_lane = kWalkBackLane,
      .rank =
          [this, first](int x) {
            return teams_.rank({first + x, me_.member});
          },
      .blocks = [this, group](int x) { return walk_.walking(x * teams_.c + me_.member, group); },
      .needs = [this, first](int x, int block) { return walk_.meets_team(block, first + x); }};
}

/// The team's tile to the group that this member seeds; returns the tile that the ring begins with.
int TeamProgram::hop(int step, int team_tile) {
  if (teams_.hop_to(me_) == me_) return team_tile;
  const TeamPlace from = teams_.hop_from(me_);
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
  const TeamPlace from = teams_.hop_from(me_);
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

/// Turn, from 0, in which what arrives last meets the tokens of a member of the team: in the order
/// in which their sums leave, own tokens last.
int TeamProgram::turn(int member, int owner) const {
  return (member - owner + teams_.c - 1) % teams_.c;
}

/// What walks meets all that stays: `attend(step, held, stay blocks, walk blocks)`, those that see
/// any. What arrives last, in step `last`, meets it in C turns: sums leave while others are made.
template <class Attend>
void TeamProgram::for_each_arrival(const std::vector<Held>& ring, int last,
                                   const Attend& attend) const {
  for (const Held& held : ring) {
    std::vector<std::vector<int>> stays(held.usable == last ? teams_.c : 1);
    for (const int s : stay_.of_team(me_.team)) {
      if (std::any_of(held.blocks.begin(), held.blocks.end(),
                      [&](int w) { return visible(s, w); })) {
        stays[stays.size() == 1 ? 0 : turn(me_.member, stay_.member_of(s))].push_back(s);
      }
    }
    for (int t = 0; t < static_cast<int>(stays.size()); ++t) {
      std::vector<int> walk;
      for (const int w : held.blocks) {
        if (std::any_of(stays[t].begin(), stays[t].end(), [&](int s) { return visible(s, w); })) {
          walk.push_back(w);
        }
      }
      attend(held.usable + t, held, stays[t], walk);
    }
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
  const std::vector<Held> k_team = spread(walk_team_, {Tensor::K}, {k_home}, 0, 0);
  const std::vector<Held> v_team = spread(walk_team_, {Tensor::V}, {v_home}, 0, alone ? 0 : 1);
  std::vector<Held> rows = spread(stay_team_, {Tensor::Q}, {q_home}, 0, alone ? 0 : 2);
  const int k = hop(1, k_team[0].tiles[0]);
  const int v = hop(2, v_team[0].tiles[0]);

  const int last = start + ring_route_.last_usable();
  const auto ready = [=, this](int member, int owner) { return last + turn(member, owner); };
  const std::vector<Held> ring = spread(ring_, walkers(Pass::Forward), {k, v}, start, start);
  stay_team_.open_sums(rows, {Tensor::Out, Tensor::Lse});
  const Held& q = rows[0];
  for_each_arrival(
      ring, last,
      [&](int step, const Held& held, const std::vector<int>& q_blocks,
          const std::vector<int>& kv_blocks) {
        builder_.compute(
            step, OpKind::Attend,
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
  builder_.compute(
      0, OpKind::Delta,
      {builder_.whole(delta), builder_.whole(dout), builder_.whole(out), builder_.whole(lse)});
  const int start = teams_.c == 1 ? 1 : 3;
  std::vector<Held> stay = spread(stay_team_, {Tensor::K, Tensor::V}, {k_home, v_home}, 0, 0);
  const std::vector<Tensor> walking = walkers(Pass::Backward);
  std::vector<Held> team = spread(walk_team_, walking, {q_home, dout, lse, delta}, 0, 1);
  std::vector<int> tiles;
  for (const int tile : team[0].tiles) tiles.push_back(hop(2, tile));

  const int last = start + ring_route_.last_usable();
  const auto stay_ready = [=, this](int member, int owner) { return last + turn(member, owner); };
  const auto ring_ready = [=, this](int member, int origin) {
    const int met = start + ring_route_.usable(member, origin);
    return met == last ? last + teams_.c - 1 : met;
  };
  std::vector<Held> ring = spread(ring_, walking, tiles, start, start);
  ring_.open_sums(ring, {Tensor::DQ});
  stay_team_.open_sums(stay, {Tensor::DK, Tensor::DV});
  const Held& kv = stay[0];
  for_each_arrival(ring, last,
                   [&](int step, const Held& held, const std::vector<int>& kv_blocks,
                       const std::vector<int>& q_blocks) {
                     const auto q_view = [&](int tile) { return builder_.part(tile, q_blocks); };
                     const auto kv_view = [&](int tile) { return builder_.part(tile, kv_blocks); };
                     builder_.compute(
                         step, OpKind::AttendGrad,
                         {q_view(held.tiles[0]), kv_view(kv.tiles[0]), kv_view(kv.tiles[1]),
                          q_view(held.tiles[1]), q_view(held.tiles[2]), q_view(held.tiles[3]),
                          q_view(held.sums[0]), kv_view(kv.sums[0]), kv_view(kv.sums[1])});
                   });

  // dQ: along the ring, back over the hop, and over the team. dK, dV: over the team.
  const int back = ring_.collect(ring, ring_ready) + 1;
  const auto walk_ready = [back](int, int) { return back; };
  walk_team_.open_sums(team, {Tensor::DQ});
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

}  // namespace

RankProgram startrail_program(const TeamContext& shared, Pass pass, Rank rank) {
  TeamProgram program(shared, rank, pass);
  return pass == Pass::Forward ? program.forward() : program.backward();
}

}  // namespace armillary::plan
