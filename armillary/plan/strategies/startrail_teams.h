// startrail_teams.h: who is in which team of StarTrail, which way its tiles go, and who meets them.
//
// Ranks are (team, member): P/C teams of C members. G = P/C^2 neighbouring teams are a group.
//
//   1. team   every member gathers its team's Q, K, V
//   2. hop    K, V of (t, a) to (a G + t / C, t mod C): one member seeds one group   (Algorithm 2)
//   3. ring   K, V walk among equal members of a group: G steps                      (Algorithm 3)
//   4. team   partial outputs are reduce-scattered: what the ring brought last meets the queries of
//             one member after the other, so that partials leave while others are computed
//
// After 3, member a of every team has seen the keys of all teams t = a (mod C). Backward changes
// the sides: K, V stay with the team, and Q, dOut, Lse, Delta hop and walk; dQ walks behind them,
// hops back, and is reduce-scattered in the team, as dK and dV are.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "armillary/plan/schedule.h"
#include "armillary/plan/strategies/movement.h"

namespace armillary::plan {

struct TeamPlace {
  int team = 0;
  int member = 0;
  bool operator==(const TeamPlace&) const = default;
};

/// The configuration of a world: who is in which team, where tiles hop to.
struct Teams {
  int c = 1;
  int teams = 1;
  bool teams_inside = true;  ///< Members of a team are neighbouring ranks; else rings are.

  int group_size() const { return teams / c; }
  Rank rank(TeamPlace place) const {
    return teams_inside ? place.team * c + place.member : place.member * teams + place.team;
  }
  TeamPlace place(Rank rank) const {
    return teams_inside ? TeamPlace{rank / c, rank % c} : TeamPlace{rank % teams, rank / teams};
  }
  TeamPlace hop_to(TeamPlace from) const {
    return {from.member * group_size() + from.team / c, from.team % c};
  }
  TeamPlace hop_from(TeamPlace to) const {
    return {to.team % group_size() * c + to.member, to.team / group_size()};
  }
};

/// Blocks of one side, Q or K, V, and the teams whose other side they meet.
class TeamSide {
 public:
  TeamSide(const Teams& teams, const std::vector<Block>& blocks)
      : teams_(teams), owned_(teams.teams) {
    meets_.resize(blocks.size() * static_cast<std::size_t>(teams.teams));
    owner_.reserve(blocks.size());
    for (int b = 0; b < static_cast<int>(blocks.size()); ++b) {
      owner_.push_back(teams.place(blocks[b].owner));
      owned_[owner_[b].team].push_back(b);
    }
  }
  void meet(int block, int team) { meets_[index(block, team)] = true; }
  int team_of(int block) const { return owner_[block].team; }
  int member_of(int block) const { return owner_[block].member; }

  const std::vector<int>& of_team(int team) const { return owned_[team]; }
  std::vector<int> of(TeamPlace place) const {
    return filter(owned_[place.team], [&](int b) { return owner_[b] == place; });
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
  std::vector<TeamPlace> owner_;
  std::vector<std::vector<int>> owned_;
  std::vector<bool> meets_;
};

/// What all ranks share.
struct TeamContext {
  TeamContext(const PlanContext& context, const Teams& teams);

  const TeamSide& walks(Pass pass) const { return pass == Pass::Forward ? kv : q; }
  const TeamSide& stays(Pass pass) const { return pass == Pass::Forward ? q : kv; }
  const Route& ring_route(Pass pass) const {
    return ring_routes.at(static_cast<std::size_t>(pass));
  }

  PlanContext context;
  Teams teams;
  TeamSide q;
  TeamSide kv;
  Route team_route;
  std::array<Route, 2> ring_routes;  ///< By pass.

 private:
  /// Tokens times the members they pass if all rings go this way.
  std::int64_t reach_on_rings(Pass pass, const Route& route) const;
};

/// Forward K, V walk; backward Q and what its gradient needs, and dQ behind them.
std::vector<Tensor> walkers(Pass pass);

/// The program of one rank.
RankProgram startrail_program(const TeamContext& shared, Pass pass, Rank rank);

}  // namespace armillary::plan
