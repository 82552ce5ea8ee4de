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

void sort_by_step(Hops& hops) {
  const auto by_step = [](const Hop& a, const Hop& b) { return a.step < b.step; };
  std::stable_sort(hops.in.begin(), hops.in.end(), by_step);
  std::stable_sort(hops.out.begin(), hops.out.end(), by_step);
}

}  // namespace

std::string_view to_string(Movement movement) {
  constexpr std::array<std::string_view, 5> kNames{"gather", "ring", "ring_back", "bidirectional",
                                                   "double_ring"};
  return kNames.at(static_cast<std::size_t>(movement));
}

Route::Route(Movement movement, int n, int window)
    : movement_(movement),
      window_(movement == Movement::DoubleRing ? window : n),
      stations_(n),
      fed_(n),
      carried_(n) {
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
  for (const int d : chain_) {
    carried_[d].push_back(d);
    if (const int next = stations_[d].next; next != 0) carried_[next] = carried_[d];
  }
  for (auto d = chain_.rbegin(); d != chain_.rend(); ++d) {
    fed_[*d].push_back(*d);
    std::vector<int>& before = fed_[stations_[*d].from];
    before.insert(before.end(), fed_[*d].begin(), fed_[*d].end());
  }
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

std::vector<int> Route::members(int origin, const std::vector<int>& distances) const {
  std::vector<int> members;
  members.reserve(distances.size());
  for (const int d : distances) members.push_back(at(origin, d));
  return members;
}

Hops Route::spread(int me) const {
  ARMILLARY_CHECK(0 <= me && me < size());
  Hops hops;
  for (int d = 1; d < size(); ++d) {
    const Station& station = stations_[d];
    const int sent = origin_of(me, station.from);
    hops.out.push_back({station.sent, sent, at(sent, d), members(sent, fed_[d])});
    const int received = origin_of(me, d);
    hops.in.push_back(
        {station.sent, received, at(received, station.from), members(received, fed_[d])});
  }
  sort_by_step(hops);
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
  std::vector<int> arrived(size());
  for (int origin = 0; origin < size(); ++origin) {
    std::fill(arrived.begin(), arrived.end(), 0);
    for (const int d : chain_) {
      const int sender = at(origin, d);
      const int next = stations_[d].next;
      const int receiver = at(origin, next);
      const int step = std::max(ready(sender, origin), arrived[d]) + 1;
      arrived[next] = step;
      if (sender == me) {
        hops.out.push_back({step, origin, receiver, members(origin, carried_[d])});
      }
      if (receiver == me) {
        hops.in.push_back({step, origin, sender, members(origin, carried_[d])});
      }
    }
  }
  sort_by_step(hops);
  return hops;
}

int Route::spread_hops(int origin, const Needs& needs) const {
  std::vector<bool> fed(size());
  int hops = 0;
  for (auto d = chain_.rbegin(); d != chain_.rend(); ++d) {
    if (!fed[*d] && !needs(at(origin, *d))) continue;
    ++hops;
    fed[stations_[*d].from] = true;
  }
  return hops;
}

int Route::collect_hops(int origin, const Needs& needs) const {
  std::vector<bool> carries(size());
  int hops = 0;
  for (const int d : chain_) {
    if (!carries[d] && !needs(at(origin, d))) continue;
    ++hops;
    carries[stations_[d].next] = true;
  }
  return hops;
}

}  // namespace armillary::plan
