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
    const int sent = origin_of(me, d);
    hops.out.push_back({step, sent, sent, d, true});
    hops.in.push_back({step, me, at(me, d), d, true});
    if (next == 0) continue;
    arrived[next] = step;
    hops.out.push_back({step, sent, at(sent, next), d, false});
    const int received = origin_of(me, next);
    hops.in.push_back({step, received, at(received, d), d, false});
  }
  sort(hops, [](const Hop& a, const Hop& b) {
    return std::pair(a.step, a.origin) < std::pair(b.step, b.origin);
  });
  return hops;
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

Route::SumHops Route::collect_hops(int origin, const Needs& needs) const {
  SumHops made{std::vector<bool>(size()), std::vector<bool>(size())};
  std::vector<bool> followed(size());  // by someone further on who adds to the sum
  for (auto d = chain_.rbegin(); d != chain_.rend(); ++d) {
    const int next = stations_[*d].next;
    followed[*d] = next != 0 && (followed[next] || needs(at(origin, next)));
  }
  std::vector<bool> begun(size());
  for (const int d : chain_) {
    if (!begun[d] && !needs(at(origin, d))) continue;
    (followed[d] ? made.on : made.home)[d] = true;
    if (followed[d]) begun[stations_[d].next] = true;
  }
  return made;
}

std::int64_t count_hops(const std::vector<bool>& hops) {
  return std::count(hops.begin(), hops.end(), true);
}

std::int64_t count_hops(const Route::SumHops& hops) {
  return count_hops(hops.on) + count_hops(hops.home);
}

Movement shorter_ring(const std::function<std::int64_t(Movement)>& bytes) {
  Movement shortest = Movement::Ring;
  std::int64_t least = bytes(shortest);
  for (const Movement way : {Movement::RingBack, Movement::Bidirectional}) {
    const std::int64_t moved = bytes(way);
    if (moved >= least) continue;
    shortest = way;
    least = moved;
  }
  return shortest;
}

LiveBlocks::LiveBlocks(const Route& spread, const Route& collect, const std::vector<int>& origins,
                       const std::function<bool(int member, int block)>& needs)
    : members_(spread.size()),
      spread_(origins.size() * members_),
      on_(spread_.size()),
      home_(spread_.size()) {
  for (std::size_t block = 0; block < origins.size(); ++block) {
    if (origins[block] < 0) continue;
    const auto needed = [&](int member) { return needs(member, static_cast<int>(block)); };
    const auto at = static_cast<std::ptrdiff_t>(block * members_);
    const auto put = [at](const std::vector<bool>& hops, std::vector<bool>& all) {
      std::copy(hops.begin(), hops.end(), all.begin() + at);
    };
    put(spread.spread_hops(origins[block], needed), spread_);
    const Route::SumHops sums = collect.collect_hops(origins[block], needed);
    put(sums.on, on_);
    put(sums.home, home_);
  }
}

}  // namespace armillary::plan
