#include "armillary/plan/strategies/movement.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::plan {
namespace {

int wrap(int member, int n) {
  return ((member % n) + n) % n;
}

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
  const int ahead = n / 2;  // of a bidirectional ring: members that the tile reaches by going on
  for (int d = 1; d < n; ++d) {
    const bool new_window = d % window_ == 0;
    switch (movement) {
      case Movement::Gather:
        stations_[d] = {.from = 0, .sent = 0, .usable = 1, .next = 0};
        break;
      case Movement::Ring:
      case Movement::RingBack:
      case Movement::DoubleRing:
        stations_[d] = {.from = new_window ? d - window_ : d - 1,
                        .sent = new_window ? d - window_ : d - 1,
                        .usable = d,
                        .next = (d + 1) % n};
        break;
      case Movement::Bidirectional:
        stations_[d] =
            d <= ahead
                ? Station{.from = d - 1, .sent = d - 1, .usable = d, .next = d < ahead ? d + 1 : 0}
                : Station{.from = (d + 1) % n,
                          .sent = n - d - 1,
                          .usable = n - d,
                          .next = d > ahead + 1 ? d - 1 : 0};
        break;
    }
    chain_.push_back(d);
  }
  std::stable_sort(chain_.begin(), chain_.end(),
                   [&](int a, int b) { return stations_[a].usable < stations_[b].usable; });
}

/// Members are counted within a window and over windows: two digits, added without carry.
int Route::plus(int member, int distance) const {
  return (member / window_ + distance / window_) % (size() / window_) * window_ +
         (member + distance) % window_;
}

int Route::minus(int member, int distance) const {
  return wrap(member / window_ - distance / window_, size() / window_) * window_ +
         wrap(member - distance, window_);
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

Hops Route::spread(int me) const {
  ARMILLARY_CHECK(0 <= me && me < size());
  Hops hops;
  for (int d = 1; d < size(); ++d) {
    const Station& station = stations_[d];
    const int sent = origin_of(me, station.from);
    hops.out.push_back({station.sent, sent, at(sent, d), d});
    const int received = origin_of(me, d);
    hops.in.push_back({station.sent, received, at(received, station.from), d});
  }
  sort(hops, [](const Hop& a, const Hop& b) { return a.step < b.step; });
  return hops;
}

int Route::last_usable() const {
  int last = 0;
  for (const Station& station : stations_) last = std::max(last, station.usable);
  return last;
}

Hops Route::collect(int me, const Ready& ready) const {
  ARMILLARY_CHECK(0 <= me && me < size());
  Hops hops;
  std::vector<int> arrived(size());  // by distance, the same for all origins
  for (const int d : chain_) {
    const int next = stations_[d].next;
    const int step = std::max(ready(at(0, d), 0), arrived[d]) + 1;
    arrived[next] = step;
    const int sent = origin_of(me, d);
    hops.out.push_back({step, sent, at(sent, next), d});
    const int received = origin_of(me, next);
    hops.in.push_back({step, received, at(received, d), d});
  }
  sort(hops, [](const Hop& a, const Hop& b) {
    return std::pair(a.step, a.origin) < std::pair(b.step, b.origin);
  });
  return hops;
}

std::vector<int> Route::fed_by(const Hop& hop) const {
  std::vector<bool> fed(size());
  fed[hop.distance] = true;
  std::vector<int> members;
  for (const int d : chain_) {
    if (fed[stations_[d].from]) fed[d] = true;
    if (fed[d]) members.push_back(at(hop.origin, d));
  }
  return members;
}

std::vector<int> Route::carried_by(const Hop& hop) const {
  std::vector<bool> carried(size());
  carried[hop.distance] = true;
  for (auto d = chain_.rbegin(); d != chain_.rend(); ++d) {
    if (stations_[*d].next != 0 && carried[stations_[*d].next]) carried[*d] = true;
  }
  std::vector<int> members;
  for (const int d : chain_) {
    if (carried[d]) members.push_back(at(hop.origin, d));
  }
  return members;
}

std::vector<bool> Route::spread_hops(int origin, const Needs& needs) const {
  std::vector<bool> made(size());
  for (auto d = chain_.rbegin(); d != chain_.rend(); ++d) {
    made[*d] = made[*d] || needs(at(origin, *d));
    if (made[*d]) made[stations_[*d].from] = true;
  }
  made[0] = false;
  return made;
}

std::vector<bool> Route::collect_hops(int origin, const Needs& needs) const {
  std::vector<bool> made(size());
  for (const int d : chain_) {
    made[d] = made[d] || needs(at(origin, d));
    if (made[d]) made[stations_[d].next] = true;
  }
  made[0] = false;
  return made;
}

LiveBlocks::LiveBlocks(const Route& spread, const Route& collect, const std::vector<int>& origins,
                       const std::function<bool(int member, int block)>& needs)
    : members_(spread.size()),
      spread_(origins.size() * members_),
      collect_(origins.size() * members_) {
  for (std::size_t block = 0; block < origins.size(); ++block) {
    if (origins[block] < 0) continue;
    const auto needed = [&](int member) { return needs(member, static_cast<int>(block)); };
    const std::vector<bool> out = spread.spread_hops(origins[block], needed);
    const std::vector<bool> home = collect.collect_hops(origins[block], needed);
    std::copy(out.begin(), out.end(),
              spread_.begin() + static_cast<std::ptrdiff_t>(block * members_));
    std::copy(home.begin(), home.end(),
              collect_.begin() + static_cast<std::ptrdiff_t>(block * members_));
  }
}

}  // namespace armillary::plan
