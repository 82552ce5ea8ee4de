// movement.h: how tiles travel along one axis of the grid, and how results return.
//
// An axis has n members. Each member is the origin of a tile that other members may need: `spread`
// lists the hops on which the tile travels to them. Results computed from the tile return to its
// origin: `collect` lists those hops.
//
//   Gather         Every origin sends directly to every other member; results return directly.
//   Ring           Tiles move from member to member + 1 and results follow them: the member after
//                  the origin starts a sum, each later member adds its own share, and the member
//                  before the origin sends the sum to the origin. That is n - 1 hops; accumulators
//                  that start at the origin make n.
//   RingBack       The same, from member to member - 1.
//   Bidirectional  Tiles travel both ways at once, half of the ring each way: n / 2 steps. Sums
//                  follow them and reach the origin from both sides.
//   DoubleRing     Rings of `window` neighbours inside a ring of windows: a tile visits its own
//                  window, hops once to the same place of the next window, and so on. That hop is
//                  sent a whole window of steps before it is needed. Sums visit members in the same
//                  order.
//
// A member receives only blocks that it needs itself, never blocks to pass on (`is_hop_needed`).
// If a member needs nothing of a tile, the origin sends to the next member directly, in the step in
// which the tile would have been passed on; a sum to which the next member adds nothing returns
// directly. So the movement decides who sends to whom and when, and the mask alone decides how
// much: one hop for each member that needs the tile, whatever the movement. Example: on a ring of
// five, members 1 and 4 need the tile of member 0. Member 0 sends it to 1 in step 0 and to 4 in
// step 3. Each rank finds this out by itself, and holds no tile longer for it: an origin keeps its
// own tile anyway.
//
// All members do the same, shifted by their places, so one table describes a route: for each
// distance from the origin, where a tile comes from, when, and where the sum goes on to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "armillary/plan/program/block_ids.h"

namespace armillary::plan {

enum class Movement : std::uint8_t { Gather, Ring, RingBack, Bidirectional, DoubleRing };
std::string_view to_string(Movement movement);  ///< `gather`, `ring`, `ring_back`, ...

/// One hop as seen by the member that sends it (peer = receiver) or receives it (peer = sender).
struct Hop {
  int step = 0;
  int origin = 0;  ///< The member whose tile, or whose result, moves.
  int peer = 0;    ///< The member at the other end.
  int member = 0;  ///< Receiver of the tile (spread), or sender of the sum (collect).
  /// The member that has the tile before `member` (spread), or adds to the sum after it (collect);
  /// -1 if that is the origin.
  int neighbour = -1;
  bool direct = false;  ///< The hop is from or to the origin, not from or to the neighbour.
};

/// True if a block of the origin makes the hop. `needs(member)` tells who needs the block. A
/// member with two hops gets the block by the direct one if the neighbour does not need it, by the
/// other one if it does.
template <class Needs>
bool is_hop_needed(const Hop& hop, const Needs& needs) {
  return needs(hop.member) && hop.direct == (hop.neighbour < 0 || !needs(hop.neighbour));
}

/// Hops of one member, in order of steps. Both ends of a hop give it the same step.
struct Hops {
  std::vector<Hop> in;
  std::vector<Hop> out;
};

/// A movement among n members. Immutable.
class Route {
 public:
  /// Requires n >= 1. `window` is used by DoubleRing only, and must divide n.
  Route(Movement movement, int n, int window = 0);

  Movement movement() const { return movement_; }
  int size() const { return static_cast<int>(stations_.size()); }

  /// Hops of the tiles; steps count from 0. A member whose neighbour is not the origin is listed
  /// twice, with a hop from the neighbour and a direct one: `is_hop_needed` chooses. Requires
  /// 0 <= me < n, as all functions below.
  Hops spread(int me) const;

  /// Steps until `member` can compute with the tile of `origin`: 0 for its own.
  int usable(int member, int origin) const { return stations_[distance(origin, member)].usable; }
  int last_usable() const;  ///< The largest of these.

  /// Hops of the sums. `ready(member, origin)` is the step in which the member finishes its own
  /// share of the origin's result; it must be the same for all members at the same distance from
  /// the origin. A hop is in the step after its sender's share is ready and the sum it carries on
  /// has arrived. A hop is listed twice if the sum may go on or return directly, as in `spread`.
  /// Cost: O(n log n).
  using Ready = std::function<int(int member, int origin)>;
  Hops collect(int me, const Ready& ready) const;

  /// Number of members that the tile of `origin` passes on its ways to those who need it, with
  /// them. In the example above 4: the direct hop to member 4 passes 2 and 3.
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
  /// The same for the members of an ascending list. Requires a Ring, RingBack or Bidirectional.
  /// Cost: O(log runs).
  int reach(int origin, const BlockIds& users) const;

 private:
  /// The member at some distance from the origin of a tile.
  struct Station {
    int from = 0;       ///< Distance of the member that the tile comes from.
    int send_step = 0;  ///< Step in which it is sent.
    int usable = 0;     ///< First step that may compute with it.
    int next = 0;       ///< Distance of the member that the sum goes on to; 0 is the origin.
  };
  int plus(int member, int distance) const;
  int minus(int member, int distance) const;
  int distance(int origin, int member) const;
  int at(int origin, int distance) const;
  int origin_of(int member, int distance) const;
  Movement movement_;
  int window_;
  std::vector<Station> stations_;  ///< Indexed by distance; 0 is the origin itself.
  std::vector<int> chain_;  ///< All distances but 0, each after those whose sums it carries on.
};

/// The ring on which tiles pass fewest members: Ring unless RingBack or Bidirectional is strictly
/// better. `reach` counts the members passed on a route, usually weighted by tokens.
Movement shorter_ring(const std::function<std::int64_t(const Route&)>& reach, int n);

}  // namespace armillary::plan
