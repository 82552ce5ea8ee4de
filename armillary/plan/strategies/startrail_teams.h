// startrail_teams.h: the teams of StarTrail, the routes of tiles between them, and the blocks that
// meet. Paper: StarTrail (WallFacer), arXiv:2407.00611, algorithms 1 to 3.
//
// Ranks are (team, member): P/C teams of C members. G = P/C^2 neighbouring teams are a group.
//
//   1. team   Every member gathers its team's Q, K, V.
//   2. hop    K, V of the team go from (t, a) to (a G + t / C, t mod C): each member seeds one
//             group (Algorithm 2).
//   3. ring   K, V walk among the members of a group with the same number: G steps (Algorithm 3).
//   4. team   Partial outputs are reduce-scattered. The tile that the ring brings last is attended
//             by the queries of one member after the other, so that partial results leave while
//             others are computed.
//
// After 3, member a of every team has seen the keys of all teams t = a (mod C). Backward exchanges
// the sides: K, V stay with the team, and Q, dOut, Lse, Delta hop and walk. dQ follows them on the
// ring, hops back, and is reduce-scattered in the team, as dK and dV are.
//
// Example, P = 8, C = 2: teams {0, 1} {2, 3} {4, 5} {6, 7}, groups of G = 2 teams. The hop takes K,
// V from ranks 0 .. 7 to ranks 0, 4, 1, 5, 2, 6, 3, 7; the rings are {0, 2} {1, 3} {4, 6} {5, 7}.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "armillary/plan/strategies/movement.h"
#include "armillary/plan/strategies/schedule.h"

namespace armillary::plan {

/// Place of a rank: its team, and its number there.
struct TeamPlace {
  int team = 0;
  int member = 0;
  bool operator==(const TeamPlace&) const = default;
};

/// The teams of a world of c * teams ranks. Requires that c divides teams.
struct Teams {
  /// Number of members of a team, which is also the number of groups.
  int c = 1;
  /// Number of teams.
  int teams = 1;
  /// True if the members of a team are neighbouring ranks, false if those of a ring are.
  bool teams_inside = true;

  /// Teams of a group, which is also the length of a ring.
  int group_size() const { return teams / c; }
  /// The rank of a place, and the inverse. With c = 2 and 4 teams, member 1 of team 2 is rank 5, or
  /// rank 6 if rings are inside.
  Rank rank(TeamPlace place) const {
    return teams_inside ? place.team * c + place.member : place.member * teams + place.team;
  }
  TeamPlace place(Rank rank) const {
    return teams_inside ? TeamPlace{rank / c, rank % c} : TeamPlace{rank % teams, rank / teams};
  }
  /// The place that K, V of the team hop to from a member (Algorithm 2), and the inverse.
  TeamPlace hop_to(TeamPlace from) const {
    return {from.member * group_size() + from.team / c, from.team % c};
  }
  TeamPlace hop_from(TeamPlace to) const {
    return {to.team % group_size() * c + to.member, to.team / group_size()};
  }
};

/// The blocks of one side, Q or K, V, by team, and the teams with blocks of the other side that see
/// them. Immutable.
class TeamSide {
 public:
  TeamSide(const Teams& teams, const PlanContext& context, MaskSide side)
      : teams_(teams),
        owned_(teams.teams),
        users_(context.visibility,
               {.side = side,
                .group_of =
                    teams_of(teams, side == MaskSide::Keys ? context.blocks.q : context.blocks.kv),
                .groups = teams.teams}) {
    const std::vector<Block>& blocks =
        side == MaskSide::Keys ? context.blocks.kv : context.blocks.q;
    owner_.reserve(blocks.size());
    for (int b = 0; b < static_cast<int>(blocks.size()); ++b) {
      owner_.push_back(teams.place(blocks[b].owner));
      owned_[owner_[b].team].push_back(b);
    }
  }
  /// The team and the member that own a block.
  int team_of(int block) const { return owner_[block].team; }
  int member_of(int block) const { return owner_[block].member; }

  /// Blocks of a whole team, and those of one of its members, ascending.
  const std::vector<int>& of_team(int team) const { return owned_[team]; }
  std::vector<int> of(TeamPlace place) const {
    return filter(owned_[place.team], [&](int b) { return owner_[b] == place; });
  }
  /// True if the block sees, or is seen by, any block of the team's other side.
  bool meets_team(int block, int team) const { return users_.needs(team, block); }
  /// True if the block meets any team of the group.
  bool meets_group(int block, int group) const {
    const int first = group * teams_.group_size();
    const auto runs = users_.of(block).runs();
    return std::any_of(runs.begin(), runs.end(), [&](const IdRun& run) {
      return run.first < first + teams_.group_size() && first <= run.last;
    });
  }
  /// True if the block meets any team whose walking tiles come to the members with this number.
  bool meets_members(int block, int member) const {
    const auto runs = users_.of(block).runs();
    return std::any_of(runs.begin(), runs.end(), [&](const IdRun& run) {
      const int ahead = (member - run.first % teams_.c + teams_.c) % teams_.c;
      return run.first + ahead <= run.last;
    });
  }
  /// Places in the group of the teams that the block meets, ascending.
  BlockIds met_in_group(int block, int group) const {
    const int first = group * teams_.group_size();
    BlockIds places;
    for (const IdRun& run : users_.of(block).runs()) {
      const IdRun part{std::max(run.first - first, 0),
                       std::min(run.last - first, teams_.group_size() - 1)};
      if (part.first <= part.last) places.append(part);
    }
    return places;
  }
  /// Blocks of a team that a group needs: those that hop and walk there.
  std::vector<int> walking(int team, int group) const {
    return filter(owned_[team], [&](int b) { return meets_group(b, group); });
  }

 private:
  /// Those of `blocks` for which `keep` is true, in their order.
  template <class Keep>
  static std::vector<int> filter(const std::vector<int>& blocks, const Keep& keep) {
    std::vector<int> subset;
    std::copy_if(blocks.begin(), blocks.end(), std::back_inserter(subset), keep);
    return subset;
  }
  /// The team that owns each block.
  static std::vector<int> teams_of(const Teams& teams, const std::vector<Block>& blocks) {
    std::vector<int> owners;
    owners.reserve(blocks.size());
    for (const Block& block : blocks) owners.push_back(teams.place(block.owner).team);
    return owners;
  }

  Teams teams_;
  std::vector<TeamPlace> owner_;         ///< Indexed by block.
  std::vector<std::vector<int>> owned_;  ///< Indexed by team.
  BlockUsers users_;                     ///< The teams that each block meets.
};

/// Everything about a problem and its teams that all ranks share. Immutable after construction.
/// Cost of construction: that of two BlockUsers, and O(blocks * c * runs of teams).
struct TeamContext {
  /// Keeps `context`, so its objects must outlive this one.
  TeamContext(const PlanContext& context, const Teams& teams);

  /// The side that walks in a pass, the side that stays with its team, and the route of the rings.
  const TeamSide& walks(Pass pass) const { return pass == Pass::Forward ? kv : q; }
  const TeamSide& stays(Pass pass) const { return pass == Pass::Forward ? q : kv; }
  const Route& ring_route(Pass pass) const {
    return ring_routes.at(static_cast<std::size_t>(pass));
  }

  PlanContext context;
  Teams teams;
  /// The two sides. A query block meets the teams whose keys it sees, a key block those whose
  /// queries see it.
  TeamSide q;
  TeamSide kv;
  /// Gathers among the members of a team.
  Route team_route;
  /// Rings of a group, indexed by pass; each goes to the shorter side.
  std::array<Route, 2> ring_routes;

 private:
  /// Tokens times the members that they pass if all rings take this route.
  std::int64_t reach_on_rings(Pass pass, const Route& route) const;
};

/// The tensors that walk: K, V in forward; Q, dOut, Lse, Delta in backward.
std::vector<Tensor> walkers(Pass pass);

/// The program of one rank. `shared` is read only, so threads may make programs at the same time.
RankProgram startrail_program(const TeamContext& shared, Pass pass, Rank rank);

}  // namespace armillary::plan
