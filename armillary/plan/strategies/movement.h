// movement.h: how tiles travel along one axis of the grid.
//
// An axis has n members. Each member is the origin of a tile that all others may need: `spread`
// says on which hops it travels. Results computed from it go back to the origin: `collect` says on
// which. Every hop names the members it is for, so that whatever nobody needs is left out hop by
// hop (a block travels a hop only if one of these members needs it), by each rank alone, without a
// global pass.
//
//   Gather   every origin sends straight to every other member; results are sent straight back.
//   Ring     tiles move from member to member + 1; results walk behind them: the member after the
//            origin starts a sum, each one adds its own, and the member before the origin brings it
//            home (n - 1 hops, where accumulators that start at the origin would make n).
//   RingBack the same from member to member - 1.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace armillary::plan {

enum class Movement : std::uint8_t { Gather, Ring, RingBack };
std::string_view to_string(Movement movement);

/// One hop as seen by the member that sends (peer = receiver) or receives (peer = sender) it.
struct Hop {
  int step = 0;
  int origin = 0;            ///< Member whose tile, or whose result, moves.
  int peer = 0;              ///< Member at the other end.
  std::vector<int> members;  ///< spread: fed by this hop; collect: whose results it carries.
};

/// Hops of one member, in order of steps. Both ends of a hop give it the same step.
struct Hops {
  std::vector<Hop> in;
  std::vector<Hop> out;
};

/// Steps count from 0. Requires 0 <= me < n.
Hops spread(Movement movement, int n, int me);

/// Steps until the tile of `origin` can be used by `member`: 0 for its own.
int usable(Movement movement, int n, int member, int origin);

/// `ready(member, origin)` is the step in which the member finishes its own share of the result; a
/// hop follows in the step after its sender's share is ready and what it carries on has arrived.
Hops collect(Movement movement, int n, int me,
             const std::function<int(int member, int origin)>& ready);

}  // namespace armillary::plan
