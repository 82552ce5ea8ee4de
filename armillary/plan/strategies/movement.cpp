#include "armillary/plan/strategies/movement.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "armillary/core/error.h"

namespace armillary::plan {
namespace {

int wrap(int member, int n) {
  return ((member % n) + n) % n;
}

std::vector<int> arc(int first, int count, int n) {
  std::vector<int> members;
  members.reserve(count);
  for (int i = 0; i < count; ++i) members.push_back(wrap(first + i, n));
  return members;
}

Hops spread_gather(int n, int me) {
  Hops hops;
  for (int k = 1; k < n; ++k) {
    const int to = wrap(me + k, n);
    const int from = wrap(me - k, n);
    hops.out.push_back({.step = 0, .origin = me, .peer = to, .members = {to}});
    hops.in.push_back({.step = 0, .origin = from, .peer = from, .members = {me}});
  }
  return hops;
}

Hops spread_ring(int n, int me) {
  Hops hops;
  const int next = wrap(me + 1, n);
  const int previous = wrap(me - 1, n);
  for (int s = 0; s + 1 < n; ++s) {
    const int left = n - 1 - s;  // members that have not seen the tile before this hop
    hops.out.push_back(
        {.step = s, .origin = wrap(me - s, n), .peer = next, .members = arc(next, left, n)});
    hops.in.push_back(
        {.step = s, .origin = wrap(me - 1 - s, n), .peer = previous, .members = arc(me, left, n)});
  }
  return hops;
}

using Ready = std::function<int(int, int)>;

Hops collect_gather(int n, int me, const Ready& ready) {
  Hops hops;
  for (int k = 1; k < n; ++k) {
    const int origin = wrap(me - k, n);
    const int member = wrap(me + k, n);
    hops.out.push_back(
        {.step = ready(me, origin) + 1, .origin = origin, .peer = origin, .members = {me}});
    hops.in.push_back(
        {.step = ready(member, me) + 1, .origin = me, .peer = member, .members = {member}});
  }
  return hops;
}

Hops collect_ring(int n, int me, const Ready& ready) {
  Hops hops;
  const int next = wrap(me + 1, n);
  const int previous = wrap(me - 1, n);
  for (int distance = 1; distance <= n; ++distance) {  // of me from the origin; n: I am the origin
    const int origin = wrap(me - distance, n);
    const auto hop = [&](int step, int d, int peer) {  // from the member at distance d
      return Hop{.step = step, .origin = origin, .peer = peer, .members = arc(origin + 1, d, n)};
    };
    int arrived = 0;  // step of the hop that brought the sum to the member at distance d
    for (int d = 1; d <= distance && d < n; ++d) {
      arrived = std::max(ready(wrap(origin + d, n), origin), arrived) + 1;
      if (d == distance) hops.out.push_back(hop(arrived, d, next));
      if (d == distance - 1) hops.in.push_back(hop(arrived, d, previous));
    }
  }
  return hops;
}

/// A ring seen in a mirror is the ring that goes back.
int mirror(int member, int n) {
  return n - 1 - member;
}

Hops mirror(Hops hops, int n) {
  for (std::vector<Hop>* side : {&hops.in, &hops.out}) {
    for (Hop& hop : *side) {
      hop.origin = mirror(hop.origin, n);
      hop.peer = mirror(hop.peer, n);
      for (int& member : hop.members) member = mirror(member, n);
    }
  }
  return hops;
}

}  // namespace

std::string_view to_string(Movement movement) {
  constexpr std::array<std::string_view, 3> kNames{"gather", "ring", "ring back"};
  return kNames.at(static_cast<std::size_t>(movement));
}

Hops spread(Movement movement, int n, int me) {
  ARMILLARY_CHECK(0 <= me && me < n);
  switch (movement) {
    case Movement::Gather:
      return spread_gather(n, me);
    case Movement::Ring:
      return spread_ring(n, me);
    case Movement::RingBack:
      return mirror(spread_ring(n, mirror(me, n)), n);
  }
  fail<InternalError>("spread: movement {}", static_cast<int>(movement));
}

int usable(Movement movement, int n, int member, int origin) {
  if (member == origin) return 0;
  if (movement == Movement::Gather) return 1;
  return movement == Movement::Ring ? wrap(member - origin, n) : wrap(origin - member, n);
}

Hops collect(Movement movement, int n, int me, const Ready& ready) {
  ARMILLARY_CHECK(0 <= me && me < n);
  Hops hops;
  switch (movement) {
    case Movement::Gather:
      hops = collect_gather(n, me, ready);
      break;
    case Movement::Ring:
      hops = collect_ring(n, me, ready);
      break;
    case Movement::RingBack:
      hops = mirror(collect_ring(n, mirror(me, n),
                                 [&](int member, int origin) {
                                   return ready(mirror(member, n), mirror(origin, n));
                                 }),
                    n);
      break;
  }
  const auto by_step = [](const Hop& a, const Hop& b) { return a.step < b.step; };
  std::stable_sort(hops.in.begin(), hops.in.end(), by_step);
  std::stable_sort(hops.out.begin(), hops.out.end(), by_step);
  return hops;
}

}  // namespace armillary::plan
