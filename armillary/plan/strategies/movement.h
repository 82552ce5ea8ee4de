// movement.h: how tiles travel along one axis of the grid.
//
// An axis has n members. Each member is the origin of a tile that all others may need: `spread`
// says on which hops it travels. Results computed from it go back to the origin: `collect` says on
// which. Whatever nobody needs is left out hop by hop, by each rank alone, without a global pass: a
// tile goes only as far as someone needs it, and a sum walks only from the first member that adds
// to it to the last, from where it goes straight home.
//
//   Gather         every origin sends straight to every other member; results come straight back.
//   Ring           tiles move from member to member + 1; results walk behind them: the member after
//                  the origin starts a sum, each one adds its own, and the member before the origin
//                  brings it home (n - 1 hops, where accumulators that start at the origin make n);
//                  under a window that ends on the next member, that one does: 1 hop.
//   RingBack       the same from member to member - 1.
//   Bidirectional  tiles walk both ways at once, half of the ring each: n / 2 steps. Sums walk
//                  behind them and go home from both sides.
//   DoubleRing     rings of `window` neighbours inside a ring of windows: a tile visits its own
//                  window, hops once to the same place of the next one, and so on. That hop is sent
//                  a whole window of steps before it is needed. Sums visit members in that order.
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
  int origin = 0;     ///< Member whose tile, or whose result, moves.
  int peer = 0;       ///< Member at the other end.
  int distance = 0;   ///< Of the member it goes to (spread) or comes from (collect).
  bool home = false;  ///< Of collect: straight to the origin, not on to the next that adds to it.
};

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

  /// Steps count from 0. Requires 0 <= me < n, as all below.
  Hops spread(int me) const;

  /// Steps until the tile of `origin` can be used by `member`: 0 for its own.
  int usable(int member, int origin) const { return stations_[distance(origin, member)].usable; }
  int last_usable() const;

  /// `ready(member, origin)` is the step in which the member finishes its own share of the result,
  /// the same for all who are as far from the origin; a hop follows in the step after its sender's
  /// share is ready and what it carries on has arrived. A member may have to send a sum on or home:
  /// both are listed, for collect_hops() to choose from. Cost: O(n log n).
  using Ready = std::function<int(int member, int origin)>;
  Hops collect(int me, const Ready& ready) const;

  /// By distance: does a tile of `origin` make the hop if only some members need it? Cost: O(n).
  using Needs = std::function<bool(int member)>;
  std::vector<bool> spread_hops(int origin, const Needs& needs) const;

  /// By distance: does the sum of what these members made of the tile go on from there, does it go
  /// home? One of the two where it is made, from the first of them to the last. Cost: O(n).
  struct SumHops {
    std::vector<bool> on;
    std::vector<bool> home;
  };
  SumHops collect_hops(int origin, const Needs& needs) const;

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

std::int64_t count_hops(const std::vector<bool>& hops);
std::int64_t count_hops(const Route::SumHops& hops);

/// Ring, or if `bytes` says that all moves together are fewer that way, RingBack or Bidirectional.
Movement shorter_ring(const std::function<std::int64_t(Movement)>& bytes);

/// Which blocks travel on which hops of an axis: those that somebody needs. Immutable.
class LiveBlocks {
 public:
  /// `origins`: the member that each block begins at, -1 for blocks of other axes.
  /// Cost: O(blocks * n).
  LiveBlocks(const Route& spread, const Route& collect, const std::vector<int>& origins,
             const std::function<bool(int member, int block)>& needs);

  bool spread(int block, int distance) const { return spread_[index(block, distance)]; }
  bool collect(int block, const Hop& hop) const {
    return (hop.home ? home_ : on_)[index(block, hop.distance)];
  }

 private:
  std::size_t index(int block, int distance) const {
    return static_cast<std::size_t>(block) * members_ + distance;
  }
  std::size_t members_;
  std::vector<bool> spread_;
  std::vector<bool> on_;
  std::vector<bool> home_;
};

}  // namespace armillary::plan
