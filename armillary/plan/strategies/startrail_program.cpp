// startrail_program.cpp: forward and backward of one rank of a team, composed from three axes.
//
//   stay_team_   the team's gather of the side that stays, and the return of its sums
//   walk_team_   the team's gather of the side that walks, and in backward the return of its sums
//   ring_        the ring on which that side walks, and in backward the return of its sums
//
// Between walk_team_ and ring_ lies the hop, which is two plain messages. In forward the side that
// stays is Q, in backward K, V. Steps of forward: gathers in 0 .. 2, hops in 1 and 2, the ring from
// 3 on; with teams of one rank the ring begins at once.
#include <algorithm>
#include <utility>

#include "armillary/plan/strategies/axis.h"
#include "armillary/plan/strategies/startrail_teams.h"

namespace armillary::plan {
namespace {

constexpr Lane kWalkLane = 1;
constexpr Lane kWalkReturnLane = 2;
constexpr Lane kTeamLane = 3;
constexpr Lane kTeamReturnLane = 4;

/// The program of one rank in one pass: a side that stays with its team and a side that walks.
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
  AxisOptions stay_options();
  AxisOptions walk_options();
  AxisOptions ring_options();
  /// Spreads all heads of `tensors` in steps that follow each other.
  std::vector<Arrived> spread(Axis& axis, const std::vector<Tensor>& tensors,
                              const std::vector<int>& tiles, int own_usable, int departure) const {
    return axis.spread(tensors, tiles, heads(tensors[0]),
                       {.own_usable = own_usable, .first = departure, .begin = departure});
  }
  int hop(int step, int team_tile);
  void hop_back(int step, const View& ring_sum, int team_sum);
  template <class Attend>
  void for_each_arrival(const std::vector<Arrived>& ring, int last, const Attend& attend) const;
  int sub_step(int member, int owner) const;
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

/// Member a of the team needs a block if any team whose tiles come to it on the ring sees the
/// block.
AxisOptions TeamProgram::stay_options() {
  return {.route = &shared_.team_route,
          .return_route = &shared_.team_route,
          .me = me_.member,
          .lane = kTeamLane,
          .return_lane = kTeamReturnLane,
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

/// Member a of the team needs a block if the group that it seeds does.
AxisOptions TeamProgram::walk_options() {
  AxisOptions options = stay_options();
  options.blocks = [this](int a) { return walk_.of({me_.team, a}); };
  options.needs = [this](int a, int block) { return walk_.meets_group(block, a); };
  return options;
}

/// Member x of the ring begins with the tiles of team x * C + me_.member, which hopped to it.
AxisOptions TeamProgram::ring_options() {
  const int group = me_.team / teams_.group_size();
  const int first = group * teams_.group_size();
  return {
      .route = &ring_route_,
      .return_route = &ring_route_,
      .me = me_.team % teams_.group_size(),
      .lane = kWalkLane,
      .return_lane = kWalkReturnLane,
      .rank =
          [this, first](int x) {
            return teams_.rank({first + x, me_.member});
          },
      .blocks = [this, group](int x) { return walk_.walking(x * teams_.c + me_.member, group); },
      .needs = [this, first](int x, int block) { return walk_.meets_team(block, first + x); }};
}

/// Sends the team's tile to the group that this member seeds. Returns the tile with which this rank
/// begins on its ring.
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

/// The hop the other way: sends the sum that the ring made to the team whose tile walked, and adds
/// the sum of this rank's team, which arrives from its ring, to `team_sum`.
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
      step, kWalkReturnLane, teams_.rank(from),
      builder_.part(ring_sum.tile, walk_.walking(from.team, me_.team / teams_.group_size())));
  builder_.recv(step, kWalkReturnLane, teams_.rank(teams_.hop_to(me_)), builder_.whole(arrived));
  builder_.compute(step, OpKind::Add, {builder_.part(team_sum, mine), builder_.whole(arrived)});
}

/// True if any pair of the two blocks is visible, whichever side stays.
bool TeamProgram::visible(int stay_block, int walk_block) const {
  const Visibility& visibility = shared_.context.visibility;
  return &stay_ == &shared_.q ? visibility.visible(stay_block, walk_block)
                              : visibility.visible(walk_block, stay_block);
}

/// Extra steps, from 0, before `member` attends the last tile of the ring with the owner's tokens.
/// Owners come in the order in which their sums leave; the member's own tokens are last.
int TeamProgram::sub_step(int member, int owner) const {
  return (member - owner + teams_.c - 1) % teams_.c;
}

/// Calls attend(step, arrived, stay blocks, walk blocks) for each tile of the ring, with the blocks
/// that see each other. The tile that arrives in step `last` is attended in C calls, one per member
/// of the team, so that sums leave while others are computed.
template <class Attend>
void TeamProgram::for_each_arrival(const std::vector<Arrived>& ring, int last,
                                   const Attend& attend) const {
  for (const Arrived& arrived : ring) {
    // Blocks that stay, one list per call.
    std::vector<std::vector<int>> stays(arrived.usable == last ? teams_.c : 1);
    for (const int s : stay_.of_team(me_.team)) {
      if (std::any_of(arrived.blocks.begin(), arrived.blocks.end(),
                      [&](int w) { return visible(s, w); })) {
        stays[stays.size() == 1 ? 0 : sub_step(me_.member, stay_.member_of(s))].push_back(s);
      }
    }
    for (int t = 0; t < static_cast<int>(stays.size()); ++t) {
      std::vector<int> walk;
      for (const int w : arrived.blocks) {
        if (std::any_of(stays[t].begin(), stays[t].end(), [&](int s) { return visible(s, w); })) {
          walk.push_back(w);
        }
      }
      attend(arrived.usable + t, arrived, stays[t], walk);
    }
  }
}

RankProgram TeamProgram::forward() {
  const int k_home = input(Tensor::K);
  const int v_home = input(Tensor::V);
  const int q_home = input(Tensor::Q);
  for (const int tile : {q_home, k_home, v_home}) builder_.save(tile);
  // Gathers and hops. Each gather can begin when its projection is ready; K first, because K and V
  // travel furthest.
  const bool alone = teams_.c == 1;
  const int start = alone ? 0 : 3;
  const std::vector<Arrived> k_team = spread(walk_team_, {Tensor::K}, {k_home}, 0, 0);
  const std::vector<Arrived> v_team = spread(walk_team_, {Tensor::V}, {v_home}, 0, alone ? 0 : 1);
  std::vector<Arrived> rows = spread(stay_team_, {Tensor::Q}, {q_home}, 0, alone ? 0 : 2);
  const int k = hop(1, k_team[0].tiles[0]);
  const int v = hop(2, v_team[0].tiles[0]);

  // The ring, and attention with each tile that it brings.
  const int last = start + ring_route_.last_usable();
  const auto ready = [=, this](int member, int owner) { return last + sub_step(member, owner); };
  const std::vector<Arrived> ring = spread(ring_, walkers(Pass::Forward), {k, v}, start, start);
  stay_team_.open_sums(rows, {Tensor::Out, Tensor::Lse});
  const Arrived& q = rows[0];
  for_each_arrival(
      ring, last,
      [&](int step, const Arrived& arrived, const std::vector<int>& q_blocks,
          const std::vector<int>& kv_blocks) {
        builder_.compute(
            step, OpKind::Attend,
            {builder_.part(q.tiles[0], q_blocks), builder_.part(arrived.tiles[0], kv_blocks),
             builder_.part(arrived.tiles[1], kv_blocks), builder_.part(q.sums[0], q_blocks),
             builder_.part(q.sums[1], q_blocks)});
      });

  // Partial outputs return in the team.
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

  // Gathers, one step later for the side that walks because Delta is computed first, and the hop.
  const int start = teams_.c == 1 ? 1 : 3;
  std::vector<Arrived> stay = spread(stay_team_, {Tensor::K, Tensor::V}, {k_home, v_home}, 0, 0);
  const std::vector<Tensor> walking = walkers(Pass::Backward);
  std::vector<Arrived> team = spread(walk_team_, walking, {q_home, dout, lse, delta}, 0, 1);
  std::vector<int> tiles;
  for (const int tile : team[0].tiles) tiles.push_back(hop(2, tile));

  // The ring. Members are ready with the tile that arrives last after C calls.
  const int last = start + ring_route_.last_usable();
  const auto stay_ready = [=, this](int member, int owner) {
    return last + sub_step(member, owner);
  };
  const auto ring_ready = [=, this](int member, int origin) {
    const int met = start + ring_route_.usable(member, origin);
    return met == last ? last + teams_.c - 1 : met;
  };
  std::vector<Arrived> ring = spread(ring_, walking, tiles, start, start);
  ring_.open_sums(ring, {Tensor::DQ});
  stay_team_.open_sums(stay, {Tensor::DK, Tensor::DV});
  const Arrived& kv = stay[0];
  for_each_arrival(
      ring, last,
      [&](int step, const Arrived& arrived, const std::vector<int>& kv_blocks,
          const std::vector<int>& q_blocks) {
        const auto q_view = [&](int tile) { return builder_.part(tile, q_blocks); };
        const auto kv_view = [&](int tile) { return builder_.part(tile, kv_blocks); };
        builder_.compute(
            step, OpKind::AttendGrad,
            {q_view(arrived.tiles[0]), kv_view(kv.tiles[0]), kv_view(kv.tiles[1]),
             q_view(arrived.tiles[1]), q_view(arrived.tiles[2]), q_view(arrived.tiles[3]),
             q_view(arrived.sums[0]), kv_view(kv.sums[0]), kv_view(kv.sums[1])});
      });

  // dQ returns along the ring, over the hop and in the team; dK, dV return in the team.
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
