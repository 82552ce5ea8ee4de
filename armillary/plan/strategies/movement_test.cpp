// movement_test.cpp: the hops of every movement, from the side of all members at once: both ends
// agree, every tile reaches those who need it once and in time, every share returns once.
#include "armillary/plan/strategies/movement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

namespace armillary::plan {
namespace {

constexpr int kSizes[] = {1, 2, 3, 5, 6, 8, 12, 13};
constexpr Movement kMovements[] = {Movement::Gather, Movement::Ring, Movement::RingBack,
                                   Movement::Bidirectional, Movement::DoubleRing};

/// One tile or sum sent in one step, as both ends of the hop see it.
struct SentTile {
  int step;
  int origin;
  int from;
  int to;
  auto key() const { return std::tie(step, origin, from, to); }
  bool operator<(const SentTile& other) const { return key() < other.key(); }
  bool operator==(const SentTile& other) const { return key() == other.key(); }
};

std::ostream& operator<<(std::ostream& out, const SentTile& message) {
  return out << "step " << message.step << ", origin " << message.origin << ": " << message.from
             << " -> " << message.to;
}

/// The hops of all members for which `keep` is true, in order of steps. Expects that both ends of
/// each hop agree on it.
std::vector<SentTile> messages(int n, const std::function<Hops(int me)>& hops_of,
                               const std::function<bool(const Hop&)>& keep) {
  std::vector<SentTile> sends;
  std::vector<SentTile> received;
  for (int me = 0; me < n; ++me) {
    const Hops hops = hops_of(me);
    for (const std::vector<Hop>* side : {&hops.in, &hops.out}) {
      for (std::size_t i = 1; i < side->size(); ++i) {
        EXPECT_LE((*side)[i - 1].step, (*side)[i].step) << "member " << me << " goes back";
      }
    }
    for (const Hop& hop : hops.out) {
      if (keep(hop)) sends.push_back({hop.step, hop.origin, me, hop.peer});
    }
    for (const Hop& hop : hops.in) {
      if (keep(hop)) received.push_back({hop.step, hop.origin, hop.peer, me});
    }
  }
  std::sort(sends.begin(), sends.end());
  std::sort(received.begin(), received.end());
  EXPECT_EQ(sends, received) << "the two ends of a hop differ";
  return sends;
}

/// True if the member needs the tile of the origin.
using Need = std::function<bool(int member, int origin)>;

/// Needs as masks make them: all, none, a window to either side, later members only, some members.
std::vector<Need> needs_of(int n) {
  return {[](int, int) { return true; },
          [](int, int) { return false; },
          [n](int member, int origin) { return member == (origin + 1) % n; },
          [n](int member, int origin) { return (member + 2) % n == origin; },
          [](int member, int origin) { return member > origin; },
          [n](int member, int origin) { return (member * 7 + origin * 5) % (n + 1) < n / 2; }};
}

std::vector<SentTile> spread_messages(const Route& route, const Need& need) {
  return messages(
      route.size(), [&](int me) { return route.spread(me); },
      [&](const Hop& hop) {
        return is_hop_needed(hop, [&](int member) { return need(member, hop.origin); });
      });
}

std::vector<SentTile> collect_messages(const Route& route, const Route::Ready& ready,
                                       const Need& need) {
  return messages(
      route.size(), [&](int me) { return route.collect(me, ready); },
      [&](const Hop& hop) {
        return is_hop_needed(hop, [&](int member) { return need(member, hop.origin); });
      });
}

bool everybody(int, int) {
  return true;
}

using ForEachCase = std::function<void(const Route& route)>;

void for_each_case(const ForEachCase& check) {
  for (const Movement movement : kMovements) {
    for (const int n : kSizes) {
      for (int window = 1; window <= n; ++window) {
        if (movement == Movement::DoubleRing ? n % window != 0 : window > 1) continue;
        SCOPED_TRACE(testing::Message() << to_string(movement) << " of " << n << ", " << window);
        check(Route(movement, n, window));
      }
    }
  }
}

/// holds[member][origin]: first step in which the member can pass the tile on or compute with it.
using Holds = std::vector<std::map<int, int>>;

Holds follow(const std::vector<SentTile>& hops, int n) {
  Holds holds(n);
  for (int member = 0; member < n; ++member) holds[member][member] = 0;
  for (const SentTile& hop : hops) {
    const auto arrived = holds[hop.from].find(hop.origin);
    if (arrived == holds[hop.from].end()) {
      ADD_FAILURE() << hop << ": sent before it arrived";
      continue;
    }
    EXPECT_LE(arrived->second, hop.step) << hop << ": sent before it arrived";
    EXPECT_TRUE(holds[hop.to].emplace(hop.origin, hop.step + 1).second)
        << hop << ": the receiver has it already";
  }
  return holds;
}

TEST(Spread, EveryMemberReceivesEveryForeignTileOnce) {
  for_each_case([](const Route& route) {
    const int n = route.size();
    const std::vector<SentTile> hops = spread_messages(route, everybody);
    EXPECT_EQ(hops.size(), static_cast<std::size_t>(n) * (n - 1));
    const Holds holds = follow(hops, n);
    for (int member = 0; member < n; ++member) {
      for (int origin = 0; origin < n; ++origin) {
        const auto arrived = holds[member].find(origin);
        ASSERT_NE(arrived, holds[member].end()) << "member " << member << " lacks " << origin;
        const int usable = route.usable(member, origin);
        EXPECT_LE(arrived->second, usable) << "member " << member << ", origin " << origin;
        if (route.movement() == Movement::DoubleRing)
          continue;  // from another window it may be early
        EXPECT_EQ(arrived->second, usable) << "member " << member << ", origin " << origin;
      }
    }
  });
}

/// Each tile arrives once and in time, from the origin or from a member that needs it too, and goes
/// to no one else.
TEST(Spread, TilesGoOnlyToThoseWhoNeedThem) {
  for_each_case([](const Route& route) {
    const int n = route.size();
    for (const Need& need : needs_of(n)) {
      const Holds holds = follow(spread_messages(route, need), n);
      for (int member = 0; member < n; ++member) {
        for (int origin = 0; origin < n; ++origin) {
          const bool arrived = holds[member].contains(origin);
          EXPECT_EQ(arrived, member == origin || need(member, origin)) << member << ' ' << origin;
          if (!arrived) continue;
          EXPECT_LE(holds[member].at(origin), route.usable(member, origin));
        }
      }
    }
  });
}

/// Worked example of movement.h: on a ring of five, members 1 and 4 need the tile of member 0.
TEST(Spread, OriginsSendPastThoseWhoNeedNothing) {
  const auto need = [](int member, int origin) {
    return origin == 0 && (member == 1 || member == 4);
  };
  const Route ring(Movement::Ring, 5);
  EXPECT_EQ(spread_messages(ring, need), (std::vector<SentTile>{{0, 0, 0, 1}, {3, 0, 0, 4}}));
  EXPECT_EQ(ring.reach(0, [&](int member) { return need(member, 0); }), 4);
  EXPECT_EQ(ring.reach(0, BlockIds{1, 4}), 4);
  const auto ready = [&](int member, int origin) { return ring.usable(member, origin); };
  EXPECT_EQ(collect_messages(ring, ready, need),
            (std::vector<SentTile>{{2, 0, 1, 0}, {5, 0, 4, 0}}));
}

/// Every member needs every tile.
TEST(Spread, RingTalksToNeighboursOnlyAndGatherTakesOneStep) {
  for (const int n : kSizes) {
    for (const SentTile& hop : spread_messages(Route(Movement::Ring, n), everybody)) {
      EXPECT_EQ(hop.to, (hop.from + 1) % n) << hop;
    }
    for (const SentTile& hop : spread_messages(Route(Movement::RingBack, n), everybody)) {
      EXPECT_EQ(hop.from, (hop.to + 1) % n) << hop;
    }
    for (const SentTile& hop : spread_messages(Route(Movement::Gather, n), everybody)) {
      EXPECT_EQ(hop.from, hop.origin) << hop;
      EXPECT_EQ(hop.step, 0) << hop;
    }
  }
}

/// Steps in which shares of results are ready: when the tile is usable, as on a ring, and others.
std::vector<Route::Ready> ready_functions(const Route& route) {
  return {[&](int member, int origin) { return route.usable(member, origin); },
          [&](int member, int origin) { return 3 + route.usable(member, origin); },
          [](int, int) { return 7; },
          [&](int member, int origin) { return 5 * route.usable(member, origin) % 11; }};
}

/// Follows the sums to their origins: share[member][origin] is the set of members whose results are
/// in it.
void check_collect(const std::vector<SentTile>& hops, int n, const Route::Ready& ready,
                   const Need& need) {
  std::vector<std::vector<std::set<int>>> share(n, std::vector<std::set<int>>(n));
  std::vector<std::vector<bool>> gone(n, std::vector<bool>(n));
  for (int member = 0; member < n; ++member) {
    for (int origin = 0; origin < n; ++origin) {
      if (member == origin || need(member, origin)) share[member][origin] = {member};
    }
  }
  std::vector<std::vector<int>> last(n, std::vector<int>(n, -1));  // Step of the last arrival.
  for (const SentTile& hop : hops) {
    EXPECT_NE(hop.from, hop.origin) << hop << ": leaves its home";
    EXPECT_FALSE(gone[hop.from][hop.origin]) << hop << ": this share was sent before";
    gone[hop.from][hop.origin] = true;
    EXPECT_FALSE(gone[hop.to][hop.origin]) << hop << ": arrives after the receiver's share left";
    EXPECT_GT(hop.step, ready(hop.from, hop.origin)) << hop << ": sent before it is ready";
    EXPECT_GT(hop.step, last[hop.from][hop.origin]) << hop << ": what it carries on comes later";
    EXPECT_FALSE(share[hop.from][hop.origin].empty()) << hop << ": carries nothing";
    for (const int member : share[hop.from][hop.origin]) {
      EXPECT_TRUE(share[hop.to][hop.origin].insert(member).second)
          << hop << ": member " << member << " is counted twice";
    }
    last[hop.to][hop.origin] = std::max(last[hop.to][hop.origin], hop.step);
  }
  for (int origin = 0; origin < n; ++origin) {
    for (int member = 0; member < n; ++member) {
      EXPECT_EQ(share[origin][origin].contains(member), member == origin || need(member, origin))
          << "member " << member << " in the result of origin " << origin;
    }
  }
}

TEST(Collect, BringsEveryShareHomeOnce) {
  for_each_case([](const Route& route) {
    const int n = route.size();
    const auto functions = ready_functions(route);
    for (std::size_t f = 0; f < functions.size(); ++f) {
      for (std::size_t m = 0; m < needs_of(n).size(); ++m) {
        SCOPED_TRACE(testing::Message() << "ready function " << f << ", needs " << m);
        const Need need = needs_of(n)[m];
        check_collect(collect_messages(route, functions[f], need), n, functions[f], need);
      }
      EXPECT_EQ(collect_messages(route, functions[f], everybody).size(),
                static_cast<std::size_t>(n) * (n - 1));
    }
  });
}

/// On a ring of three the sum of origin 0 starts on member 1; member 2 adds its share and returns
/// it.
TEST(Collect, RingSumsWalkBehindTheTiles) {
  const Route ring(Movement::Ring, 3);
  const auto ready = [&](int member, int origin) { return ring.usable(member, origin); };
  const std::vector<SentTile> expected{{2, 0, 1, 2}, {2, 1, 2, 0}, {2, 2, 0, 1},
                                       {3, 0, 2, 0}, {3, 1, 0, 1}, {3, 2, 1, 2}};
  EXPECT_EQ(collect_messages(ring, ready, everybody), expected);
}

/// Only members 2 and 3 of six add to the sum of origin 0: 2 starts it and 3 returns it.
TEST(Collect, SumsGoHomeFromTheLastThatAdds) {
  for (const Movement movement : {Movement::Ring, Movement::Bidirectional}) {
    const Route route(movement, 6);
    const auto ready = [&](int member, int origin) { return route.usable(member, origin); };
    const auto need = [](int member, int origin) {
      return origin == 0 && (member == 2 || member == 3);
    };
    const std::vector<SentTile> expected{{3, 0, 2, 3}, {4, 0, 3, 0}};
    EXPECT_EQ(collect_messages(route, ready, need), expected) << to_string(movement);
  }
}

}  // namespace
}  // namespace armillary::plan
