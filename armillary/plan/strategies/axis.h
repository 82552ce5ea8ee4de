// axis.h: one axis of the grid as one of its members sees it: the tiles that travel along it, and
// the sums that return.
//
//   spread      tiles out: sends, receives, and the tiles that hold what arrives
//   open_sums   a cleared partial tile for the results of each arrival
//   collect     sums back: sends, receives, and the merge or addition of each sum that arrives
//
// The caller emits the attention between `open_sums` and `collect`.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "armillary/core/small_vector.h"
#include "armillary/plan/strategies/movement.h"
#include "armillary/plan/strategies/program_builder.h"

namespace armillary::plan {

/// Tiles that this rank can compute with from one step on: its own, or those that arrived together.
struct Arrived {
  /// Heads of the tiles that travel: those given to `spread`.
  Heads heads;
  /// Members whose tiles these are.
  SmallVector<int, 1> origins;
  /// The blocks: all blocks of its own tiles, and those that this rank needs of other members'.
  BlockIds blocks;
  /// One tile per tensor that travels. If the axis gathers (`Gathered`), all `Arrived` of one call
  /// of `spread` have the same tiles.
  SmallVector<int, 4> tiles;
  /// One partial tile per tensor that returns, made by `open_sums`.
  SmallVector<int, 2> sums;
  /// First step that may compute with the tiles.
  int usable = 0;
};

/// Steps in which the tiles of an axis leave. A hop in step 0 of the route happens in `first`, one
/// in step s > 0 in begin + s * pace; a tile that is usable after s > 0 steps of the route is
/// usable in begin + s * pace. Example: {.first = 0, .begin = 1, .pace = 2} sends in steps 0, 3
/// and 5.
struct Departure {
  int own_usable = 0;  ///< First step that may compute with the rank's own tiles.
  int first = 0;
  int begin = 0;
  int pace = 1;
};

/// The tiles in which those that arrive on an axis are kept.
enum class Gathered : std::uint8_t {
  Apart,    ///< Own tiles stay in place; tiles that arrive in one step share a tile of their own.
  InParts,  ///< One tile for all, own blocks copied there; each part is usable once it is there.
  Whole,    ///< One tile for all, usable once all parts are there.
};

/// The place of a rank on its axis, and the tiles that travel there.
struct AxisOptions {
  /// Routes of the tiles and of the sums. Both must outlive the axis and have the same size.
  const Route* route = nullptr;
  const Route* return_route = nullptr;
  /// This rank's place among the members.
  int me = 0;
  /// Lanes of the tiles and of the sums.
  Lane lane = 1;
  Lane return_lane = 2;
  Gathered gathered = Gathered::Apart;
  /// The rank of a member.
  std::function<Rank(int member)> rank;
  /// Blocks of the tile that a member is the origin of.
  std::function<BlockIds(int origin)> blocks;
  /// True if the member attends the block, and so adds to the sum of its results.
  std::function<bool(int member, int block)> needs;
};

/// One axis seen by one of its members. The constructor finds the hops and their blocks once; they
/// are the same for all tensors and heads. All axes of a program emit into one builder, which
/// orders the ops by step.
class Axis {
 public:
  Axis(ProgramBuilder& builder, AxisOptions options);

  /// Emits the hops of some heads of `tensors`; own_tiles[t] holds this rank's part of tensors[t].
  /// Returns what becomes usable, in order of steps: the rank's own tiles first, unless the axis
  /// gathers as a whole.
  std::vector<Arrived> spread(const std::vector<Tensor>& tensors, const std::vector<int>& own_tiles,
                              Heads heads, const Departure& departure);

  /// Gives every element of `arrived` that has no sums yet a partial tile per tensor, and clears it
  /// in the step in which the element becomes usable.
  void open_sums(std::vector<Arrived>& arrived, const std::vector<Tensor>& tensors);

  /// All parts as one, usable when the last of them is. Requires that the parts share their tiles
  /// (`Gathered::InParts`), or that there is one part.
  static Arrived joined(const std::vector<Arrived>& parts);

  /// The rank's own blocks of sum number `tensor`.
  View own_sum(const std::vector<Arrived>& arrived, int tensor) const;

  /// Emits the hops that return the sums to their origins, and the merge (Out with Lse) or addition
  /// (gradients) of each sum that arrives. `ready(member, origin)` is the step in which the member
  /// finishes its own share of the origin's sum (Route::collect). Returns the step in which the
  /// rank's own sum is complete, the same on all members.
  using Ready = Route::Ready;
  int collect(const std::vector<Arrived>& arrived, const Ready& ready);
  /// The same for slices of heads, each ready one step after the slice before it. Returns the step
  /// in which the last one is complete.
  int collect(std::span<const std::vector<Arrived>> slices, const Ready& ready);

 private:
  /// A hop and the blocks that need it.
  struct Move {
    Hop hop;
    BlockIds blocks;
  };
  /// Tiles that become usable together, `usable` steps of the route after the departure.
  struct UsableTiles {
    int usable = 0;
    SmallVector<int, 1> origins;
    BlockIds blocks;
  };

  template <class Keep>
  BlockIds blocks_where(int origin, const Keep& keep) const;
  std::vector<Move> moves(const std::vector<Hop>& hops) const;
  BlockIds needed_of(int origin) const;
  void find_arrivals();
  bool gathers() const {
    return options_.gathered != Gathered::Apart && options_.route->size() > 1;
  }
  SmallVector<int, 4> gather(const std::vector<Tensor>& tensors, const std::vector<int>& own_tiles,
                             Heads heads, int step);
  std::vector<int> index_by_origin(const std::vector<Arrived>& arrived) const;
  int collect(const std::vector<Arrived>& arrived, const std::vector<Move>& out,
              const std::vector<Move>& in, const Ready& ready, int later);
  void combine(int step, const Arrived& into, const SmallVector<int, 2>& scratch);

  ProgramBuilder& builder_;
  AxisOptions options_;
  std::vector<BlockIds> blocks_;  ///< By origin: the blocks of its tile.
  std::vector<Move> out_;         ///< Tiles that this rank sends, own ones and those it passes on.
  std::vector<Move> in_;
  std::vector<UsableTiles> arrivals_;  ///< In order of `usable`; includes the rank's own tiles.
};

}  // namespace armillary::plan
