// movement.cpp: the table of stations of each movement, and the hops that follow from it.
//
// The constructor fills `stations_`, indexed by the distance from the origin of a tile. `spread`
// and `collect` go through it for one member, and find the origins from which that member has the
// distances at the two ends of a hop.
#include "armillary/plan/strategies/movement.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::plan {
namespace {

/// a - b mod n. Requires that both are in [0, n).
int minus_mod(int a, int b, int n) {
  return a < b ? a - b + n : a - b;
}

/// The largest id of an ascending list that is at most `most`, or -1; the least that is at least
/// `least`, or -1.
int last_up_to(const BlockIds& ids, int most) {
  const auto runs = ids.runs();
  const auto after = std::partition_point(runs.begin(), runs.end(),
                                          [&](const IdRun& run) { return run.first <= most; });
  return after == runs.begin() ? -1 : std::min(most, (after - 1)->last);
}
int first_from(const BlockIds& ids, int least) {
  const auto runs = ids.runs();
  const auto run = std::partition_point(runs.begin(), runs.end(),
                                        [&](const IdRun& run) { return run.last < least; });
  return run == runs.end() ? -1 : std::max(least, run->first);
}

/// The members of a ring of n, seen from an origin.
struct Around {
  const BlockIds& users;
  int origin;
  int n;

  /// The largest distance from 1 to `limit` ahead of the origin at which a user is, or 0. Members
  /// past the end of the numbers are farthest.
  int ahead(int limit) const {
    const int end = origin + limit;
    const int wrapped = end < n ? -1 : last_up_to(users, end - n);
    if (wrapped >= 0) return wrapped + n - origin;
    return std::max(0, last_up_to(users, std::min(end, n - 1)) - origin);
  }
  /// The same behind it.
  int behind(int limit) const {
    const int end = origin - limit;
    const int wrapped = end >= 0 ? -1 : first_from(users, end + n);
    if (wrapped >= 0) return origin + n - wrapped;
    const int first = first_from(users, std::max(end, 0));
    return first < 0 ? 0 : std::max(0, origin - first);
  }
};

/// Stable: hops of one step keep the order in which they were added, the same at both ends.
template <class Before>
void sort(Hops& hops, const Before& before) {
  std::stable_sort(hops.in.begin(), hops.in.end(), before);
  std::stable_sort(hops.out.begin(), hops.out.end(), before);
}

}  // namespace

std::string_view to_string(Movement movement) {
  constexpr std::array<std::string_view, 5> kNames{"gather", "ring", "ring_back", "bidirectional",
                                                   "double_ring"};
  return kNames.at(static_cast<std::size_t>(movement));
}

Route::Route(Movement movement, int n, int window)
    : movement_(movement), window_(movement == Movement::DoubleRing ? window : n), stations_(n) {
  ARMILLARY_CHECK(n >= 1 && window_ >= 1 && n % window_ == 0);
  const int ahead = n / 2;  // bidirectional ring: members that the tile reaches going forwards
  for (int d = 1; d < n; ++d) {
    const bool new_window = d % window_ == 0;
    switch (movement) {
      case Movement::Gather:
        stations_[d] = {.from = 0, .send_step = 0, .usable = 1, .next = 0};
        break;
      case Movement::Ring:
      case Movement::RingBack:
      case Movement::DoubleRing:
        // Distance d - 1 passes the tile on, except into a new window: there the member at the same
        // place of the window before sends it, as soon as it has it itself.
        stations_[d] = {.from = new_window ? d - window_ : d - 1,
                        .send_step = new_window ? d - window_ : d - 1,
                        .usable = d,
                        .next = (d + 1) % n};
        break;
      case Movement::Bidirectional:
        // Distances up to `ahead` are reached forwards, the others backwards from the origin.
        stations_[d] = d <= ahead ? Station{.from = d - 1,
                                            .send_step = d - 1,
                                            .usable = d,
                                            .next = d < ahead ? d + 1 : 0}
                                  : Station{.from = (d + 1) % n,
                                            .send_step = n - d - 1,
                                            .usable = n - d,
                                            .next = d > ahead + 1 ? d - 1 : 0};
        break;
    }
    chain_.push_back(d);
  }
  // Sums go on to members where the tile is usable later, so this order puts senders first.
  std::stable_sort(chain_.begin(), chain_.end(),
                   [&](int a, int b) { return stations_[a].usable < stations_[b].usable; });
}

/// Members have two digits, the window and the place in it, which are added without carry. Without
/// windows `window_` is n and there is one digit. Nine members, windows of 3: 4 plus 5 is (1, 1) +
/// (1, 2) = (2, 0), member 6.
int Route::plus(int member, int distance) const {
  return (member / window_ + distance / window_) % (size() / window_) * window_ +
         (member + distance) % window_;
}

// Plans of thousands of ranks ask this a million times; one digit is the common case.
int Route::minus(int member, int distance) const {
  if (window_ == size()) return minus_mod(member, distance, window_);
  return minus_mod(member / window_, distance / window_, size() / window_) * window_ +
         minus_mod(member % window_, distance % window_, window_);
}

int Route::distance(int origin, int member) const {
  return movement_ == Movement::RingBack ? minus(origin, member) : minus(member, origin);
}

int Route::at(int origin, int distance) const {
  return movement_ == Movement::RingBack ? minus(origin, distance) : plus(origin, distance);
}

int Route::origin_of(int member, int distance) const {
  return movement_ == Movement::RingBack ? plus(member, distance) : minus(member, distance);
}

/// Each station gives one hop out (to the member at that distance from the tile's origin) and one
/// in. Stations whose tile comes from a neighbour give a direct hop as well.
Hops Route::spread(int me) const {
  ARMILLARY_CHECK(0 <= me && me < size());
  Hops hops;
  for (int d = 1; d < size(); ++d) {
    const Station& station = stations_[d];
    const auto hop = [&](int origin, bool direct) {
      return Hop{.step = station.send_step,
                 .origin = origin,
                 .member = at(origin, d),
                 .neighbour = station.from == 0 ? -1 : at(origin, station.from),
                 .direct = direct};
    };
    const auto add = [&](int from, bool direct) {
      Hop out = hop(origin_of(me, from), direct);
      out.peer = out.member;
      hops.out.push_back(out);
      Hop in = hop(origin_of(me, d), direct);
      in.peer = direct ? in.origin : in.neighbour;
      hops.in.push_back(in);
    };
    add(0, true);
    if (station.from != 0) add(station.from, false);
  }
  sort(hops, [](const Hop& a, const Hop& b) { return a.step < b.step; });
  return hops;
}

int Route::last_usable() const {
  int last = 0;
  for (const Station& station : stations_) last = std::max(last, station.usable);
  return last;
}

/// Stations in the order of `chain_`: the step of a hop is known once all sums that it carries on
/// have steps. A hop to the origin is always listed, one to the next member if there is one.
Hops Route::collect(int me, const Ready& ready) const {
  ARMILLARY_CHECK(0 <= me && me < size());
  Hops hops;
  // Step in which the last sum reaches each distance; the same for all origins.
  std::vector<int> arrived(size());
  for (const int d : chain_) {
    const int next = stations_[d].next;
    const int step = std::max(ready(at(0, d), 0), arrived[d]) + 1;
    const auto hop = [&](int origin, int peer, bool direct) {
      return Hop{.step = step,
                 .origin = origin,
                 .peer = peer,
                 .member = at(origin, d),
                 .neighbour = next == 0 ? -1 : at(origin, next),
                 .direct = direct};
    };
    const int outgoing = origin_of(me, d);
    hops.out.push_back(hop(outgoing, outgoing, true));
    hops.in.push_back(hop(me, at(me, d), true));
    if (next == 0) continue;
    arrived[next] = step;
    hops.out.push_back(hop(outgoing, at(outgoing, next), false));
    const int incoming = origin_of(me, next);
    hops.in.push_back(hop(incoming, at(incoming, d), false));
  }
  sort(hops, [](const Hop& a, const Hop& b) {
    return std::pair(a.step, a.origin) < std::pair(b.step, b.origin);
  });
  return hops;
}

// Tiles pass everybody up to the farthest user, on each way.
int Route::reach(int origin, const BlockIds& users) const {
  const Around around{users, origin, size()};
  switch (movement_) {
    case Movement::Ring:
      return around.ahead(size() - 1);
    case Movement::RingBack:
      return around.behind(size() - 1);
    case Movement::Bidirectional:
      return around.ahead(size() / 2) + around.behind(size() - 1 - size() / 2);
    default:
      fail<InternalError>("movement: {} has no reach along a ring", to_string(movement_));
  }
}

Movement shorter_ring(const std::function<std::int64_t(const Route&)>& reach, int n) {
  Movement shortest = Movement::Ring;
  std::int64_t least = reach(Route(shortest, n));
  for (const Movement way : {Movement::RingBack, Movement::Bidirectional}) {
    const std::int64_t passed = reach(Route(way, n));
    if (passed >= least) continue;
    shortest = way;
    least = passed;
  }
  return shortest;
}

}  // namespace armillary::plan
