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

/// A hop as both of its ends see it.
struct Message {
  int step;
  int origin;
  int from;
  int to;
  std::vector<int> members;
  auto key() const { return std::tie(step, origin, from, to, members); }
  bool operator<(const Message& other) const { return key() < other.key(); }
  bool operator==(const Message& other) const { return key() == other.key(); }
};

std::ostream& operator<<(std::ostream& out, const Message& message) {
  return out << "step " << message.step << ", origin " << message.origin << ": " << message.from
             << " -> " << message.to << " for " << testing::PrintToString(message.members);
}

/// Hops of all members, in the order of steps. Both ends of a hop must agree on it.
std::vector<Message> messages(int n, const std::function<Hops(int me)>& hops_of,
                              const std::function<std::vector<int>(const Hop&)>& members_of) {
  std::vector<Message> sent;
  std::vector<Message> received;
  for (int me = 0; me < n; ++me) {
    const Hops hops = hops_of(me);
    for (const std::vector<Hop>* side : {&hops.in, &hops.out}) {
      for (std::size_t i = 1; i < side->size(); ++i) {
        EXPECT_LE((*side)[i - 1].step, (*side)[i].step) << "member " << me << " goes back";
      }
    }
    for (const Hop& hop : hops.out) {
      sent.push_back({hop.step, hop.origin, me, hop.peer, members_of(hop)});
    }
    for (const Hop& hop : hops.in) {
      received.push_back({hop.step, hop.origin, hop.peer, me, members_of(hop)});
    }
  }
  std::sort(sent.begin(), sent.end());
  std::sort(received.begin(), received.end());
  EXPECT_EQ(sent, received) << "the two ends of a hop differ";
  return sent;
}

std::set<int> to_set(const std::vector<int>& members) {
  std::set<int> set(members.begin(), members.end());
  EXPECT_EQ(set.size(), members.size())
      << "a member is named twice: " << testing::PrintToString(members);
  return set;
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

Holds follow(const std::vector<Message>& hops, int n) {
  Holds holds(n);
  for (int member = 0; member < n; ++member) holds[member][member] = 0;
  for (const Message& hop : hops) {
    const auto held = holds[hop.from].find(hop.origin);
    if (held == holds[hop.from].end()) {
      ADD_FAILURE() << hop << ": sent before it arrived";
      continue;
    }
    EXPECT_LE(held->second, hop.step) << hop << ": sent before it arrived";
    EXPECT_TRUE(holds[hop.to].emplace(hop.origin, hop.step + 1).second)
        << hop << ": the receiver has it already";
  }
  return holds;
}

TEST(Spread, EveryMemberReceivesEveryForeignTileOnce) {
  for_each_case([](const Route& route) {
    const int n = route.size();
    const std::vector<Message> hops = messages(
        n, [&](int me) { return route.spread(me); },
        [&](const Hop& hop) { return route.fed_by(hop); });
    EXPECT_EQ(hops.size(), static_cast<std::size_t>(n) * (n - 1));
    const Holds holds = follow(hops, n);
    for (int member = 0; member < n; ++member) {
      for (int origin = 0; origin < n; ++origin) {
        const auto held = holds[member].find(origin);
        ASSERT_NE(held, holds[member].end()) << "member " << member << " lacks " << origin;
        const int usable = route.usable(member, origin);
        EXPECT_LE(held->second, usable) << "member " << member << ", origin " << origin;
        if (route.movement() == Movement::DoubleRing) continue;  // the next window's is there early
        EXPECT_EQ(held->second, usable) << "member " << member << ", origin " << origin;
      }
    }
  });
}

/// A hop feeds its receiver and all to whom the receiver passes the tile on.
TEST(Spread, MembersAreThoseFedByTheHop) {
  for_each_case([](const Route& route) {
    const int n = route.size();
    const std::vector<Message> hops = messages(
        n, [&](int me) { return route.spread(me); },
        [&](const Hop& hop) { return route.fed_by(hop); });
    std::map<std::pair<int, int>, std::set<int>> fed;  // By origin and receiver.
    for (auto hop = hops.rbegin(); hop != hops.rend(); ++hop) {
      std::set<int>& by_this = fed[{hop->origin, hop->to}];
      by_this.insert(hop->to);
      EXPECT_EQ(to_set(hop->members), by_this) << *hop;
      EXPECT_EQ(by_this.count(hop->origin), 0u) << *hop << ": goes back to its origin";
      fed[{hop->origin, hop->from}].insert(by_this.begin(), by_this.end());
    }
  });
}

TEST(Spread, RingTalksToNeighboursOnlyAndGatherTakesOneStep) {
  for (const int n : kSizes) {
    for (int me = 0; me < n; ++me) {
      const Hops ring = Route(Movement::Ring, n).spread(me);
      for (const Hop& hop : ring.out) EXPECT_EQ(hop.peer, (me + 1) % n);
      for (const Hop& hop : ring.in) EXPECT_EQ(hop.peer, (me + n - 1) % n);
      const Hops back = Route(Movement::RingBack, n).spread(me);
      for (const Hop& hop : back.out) EXPECT_EQ(hop.peer, (me + n - 1) % n);
      for (const Hop& hop : back.in) EXPECT_EQ(hop.peer, (me + 1) % n);
      const Hops gather = Route(Movement::Gather, n).spread(me);
      for (const Hop& hop : gather.out) EXPECT_EQ(hop.origin, me);
      for (const Hop& hop : gather.in) EXPECT_EQ(hop.step, 0);
    }
  }
}

/// Steps in which shares of results are ready, for rings that meet everything held at once and for
/// others.
std::vector<Route::Ready> ready_functions(const Route& route) {
  return {[&](int member, int origin) { return route.usable(member, origin); },
          [&](int member, int origin) { return 3 + route.usable(member, origin); },
          [](int, int) { return 7; },
          [&](int member, int origin) { return 5 * route.usable(member, origin) % 11; }};
}

/// Follows the sums home: share[member][origin] is the set of members whose results are in it.
void check_collect(const std::vector<Message>& hops, int n,
                   const std::function<int(int, int)>& ready) {
  std::vector<std::vector<std::set<int>>> share(n, std::vector<std::set<int>>(n));
  std::vector<std::vector<int>> last(n, std::vector<int>(n, -1));  // Step of the last arrival.
  std::vector<std::vector<bool>> gone(n, std::vector<bool>(n));
  for (int member = 0; member < n; ++member) {
    for (int origin = 0; origin < n; ++origin) share[member][origin] = {member};
  }
  for (const Message& hop : hops) {
    EXPECT_NE(hop.from, hop.origin) << hop << ": leaves its home";
    EXPECT_FALSE(gone[hop.from][hop.origin]) << hop << ": this share was sent before";
    gone[hop.from][hop.origin] = true;
    EXPECT_FALSE(gone[hop.to][hop.origin]) << hop << ": arrives after the receiver's share left";
    EXPECT_EQ(hop.step, std::max(ready(hop.from, hop.origin), last[hop.from][hop.origin]) + 1)
        << hop << ": not the step after what it carries is ready";
    EXPECT_EQ(to_set(hop.members), share[hop.from][hop.origin]) << hop << ": carries others";
    for (const int member : share[hop.from][hop.origin]) {
      EXPECT_TRUE(share[hop.to][hop.origin].insert(member).second)
          << hop << ": member " << member << " is counted twice";
    }
    last[hop.to][hop.origin] = std::max(last[hop.to][hop.origin], hop.step);
  }
  for (int origin = 0; origin < n; ++origin) {
    EXPECT_EQ(share[origin][origin].size(), static_cast<std::size_t>(n))
        << "the result of origin " << origin << " is not whole at home";
  }
}

TEST(Collect, BringsEveryShareHomeOnce) {
  for_each_case([](const Route& route) {
    const int n = route.size();
    const auto functions = ready_functions(route);
    for (std::size_t f = 0; f < functions.size(); ++f) {
      SCOPED_TRACE(testing::Message() << "ready function " << f);
      const std::vector<Message> hops = messages(
          n, [&](int me) { return route.collect(me, functions[f]); },
          [&](const Hop& hop) { return route.carried_by(hop); });
      EXPECT_EQ(hops.size(), static_cast<std::size_t>(n) * (n - 1));
      check_collect(hops, n, functions[f]);
    }
  });
}

/// Worked example of movement.h: on a ring of three the sum of origin 0 starts on member 1, member
/// 2 adds its own and brings it home.
TEST(Collect, RingSumsWalkBehindTheTiles) {
  const Route ring(Movement::Ring, 3);
  const auto ready = [&](int member, int origin) { return ring.usable(member, origin); };
  const std::vector<Message> hops = messages(
      3, [&](int me) { return ring.collect(me, ready); },
      [&](const Hop& hop) { return ring.carried_by(hop); });
  const std::vector<Message> expected{{2, 0, 1, 2, {1}},    {2, 1, 2, 0, {2}},
                                      {2, 2, 0, 1, {0}},    {3, 0, 2, 0, {1, 2}},
                                      {3, 1, 0, 1, {2, 0}}, {3, 2, 1, 2, {0, 1}}};
  EXPECT_EQ(hops, expected);
}

}  // namespace
}  // namespace armillary::plan
