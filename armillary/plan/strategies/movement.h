// movement.h: how tiles travel along one axis of the grid.
//
// An axis has n members. Each member is the origin of a tile that others may need: `spread` says on
// which hops it travels. Results computed from it go back to the origin: `collect` says on which.
//
//   Gather         every origin sends straight to every other member; results come straight back.
//   Ring           tiles move from member to member + 1; results walk behind them: the member after
//                  the origin starts a sum, each one adds its own, and the member before the origin
//                  brings it home (n - 1 hops, where accumulators that start at the origin make n).
//   RingBack       the same from member to member - 1.
//   Bidirectional  tiles walk both ways at once, half of the ring each: n / 2 steps. Sums walk
//                  behind them and go home from both sides.
//   DoubleRing     rings of `window` neighbours inside a ring of windows: a tile visits its own
//                  window, hops once to the same place of the next one, and so on. That hop is sent
//                  a whole window of steps before it is needed. Sums visit members in that order.
//
// Nobody is sent what it does not need, only to pass it on (`makes`): behind a member that needs
// nothing of a tile the origin itself goes on, in the step in which the tile would have been passed
// on, and a sum that the next member does not add to goes straight home. So a movement says who
// talks to whom and when, and the mask alone how much: one hop for each member that needs the tile,
// whatever the movement. Each rank sees that for itself, without a global pass, and holds no tile
// longer for it: origins have theirs anyway.
//
// All members do the same, moved by their place, so one table says it all: for each distance from
// the origin where the tile comes from, when, and where the sum goes on to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace armillary::plan {

enum class Movement : std::uint8_t { Gather, Ring, RingBack, Bidirectional, DoubleRing };
std::string_view to_string(Movement movement);  ///< `gather`, `ring`, `ring_back`, ...

/// One hop as seen by the member that sends (peer = receiver) or receives (peer = sender) it.
struct Hop {
  int step = 0;
  int origin = 0;         ///< Member whose tile, or whose result, moves.
  int peer = 0;           ///< Member at the other end.
  int member = 0;         ///< Of spread: it goes there. Of collect: it comes from there.
  int beside = -1;        ///< The one before (spread) or after (collect) it; -1: the origin.
  bool straight = false;  ///< From or to the origin, not the one beside.
};

/// Does a block of the origin make the hop, where `needs(member)` says who needs it?
template <class Needs>
bool makes(const Hop& hop, const Needs& needs) {
  return needs(hop.member) && hop.straight == (hop.beside < 0 || !needs(hop.beside));
}

/// Hops of one member, in order of steps. Both ends of a hop give it the same step.
struct Hops {
  std::vector<Hop> in;
  std::vector<Hop> out;
};

/// A movement among n members. Immutable.
class Route {
 public:
  /// `window` is for DoubleRing only, and must divide n.
  Route(Movement movement, int n, int window = 0);

  Movement movement() const { return movement_; }
  int size() const { return static_cast<int>(stations_.size()); }

  /// Steps count from 0. A member that is not beside the origin is listed twice, with a hop from
  /// the one before it and one straight from the origin: `makes` chooses. Requires 0 <= me < n, as
  /// all below.
  Hops spread(int me) const;

  /// Steps until the tile of `origin` can be used by `member`: 0 for its own.
  int usable(int member, int origin) const { return stations_[distance(origin, member)].usable; }
  int last_usable() const;

  /// `ready(member, origin)` is the step in which the member finishes its own share of the result,
  /// the same for all who are as far from the origin; a hop follows in the step after its sender's
  /// share is ready and what it carries on has arrived. Listed twice where a sum may go on or home.
  /// Cost: O(n log n).
  using Ready = std::function<int(int member, int origin)>;
  Hops collect(int me, const Ready& ready) const;

  /// Members that a tile of `origin` passes on its ways to those who need it, them included.
  template <class Needs>
  int reach(int origin, const Needs& needs) const {
    std::vector<bool> passed(size());
    int count = 0;
    for (auto d = chain_.rbegin(); d != chain_.rend(); ++d) {
      if (!passed[*d] && !needs(at(origin, *d))) continue;
      passed[stations_[*d].from] = true;
      ++count;
    }
    return count;
  }

 private:
  /// A member at some distance from the origin of a tile.
  struct Station {
    int from = 0;    ///< Distance of the member that the tile comes from.
    int sent = 0;    ///< Step in which it is sent.
    int usable = 0;  ///< First step that may compute with it.
    int next = 0;    ///< Distance of the member that the sum goes on to; 0: home.
  };
  int plus(int member, int distance) const;
  int minus(int member, int distance) const;
  int distance(int origin, int member) const;
  int at(int origin, int distance) const;
  int origin_of(int member, int distance) const;
  Movement movement_;
  int window_;
  std::vector<Station> stations_;  ///< By distance; 0 is the origin itself.
  std::vector<int> chain_;         ///< Distances but 0, each after those whose sums it carries on.
};

/// Ring, or if `reach` says that tiles pass fewer members that way, RingBack or Bidirectional.
Movement shorter_ring(const std::function<std::int64_t(const Route&)>& reach, int n);

}  // namespace armillary::plan
