// axis.h: tiles that travel along one axis of the grid, and sums that come back.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "armillary/plan/strategies/movement.h"
#include "armillary/plan/strategies/program_builder.h"

namespace armillary::plan {

/// Tiles that a rank holds on an axis from one step on: its own, or those that arrived in a step.
struct Held {
  Heads heads;               ///< Of the tiles, or the part of them that is meant.
  std::vector<int> origins;  ///< Members they come from.
  BlockIds blocks;           ///< What this rank needs of them; all of its own.
  std::vector<int> tiles;    ///< One per tensor that travels.
  std::vector<int> sums;     ///< One per tensor that comes back.
  int usable = 0;            ///< First step that may compute with the tiles.
};

/// When the tiles of an axis leave.
struct Departure {
  int own_usable = 0;  ///< First step that may compute with the rank's own tiles.
  int first = 0;       ///< Step of the first hop.
  int begin = 0;       ///< Step that the others, and what arrives, count from:
  int pace = 1;        ///< so many steps for each hop.
};

/// Where the tiles of an axis lie.
enum class Gathered : std::uint8_t {
  Apart,    ///< Own tiles stay where they are; what arrives in a step has tiles of its own.
  InParts,  ///< All in one tile, own ones copied there; each part is usable when it is there.
  Whole,    ///< All in one tile, usable when all are there.
};

/// One axis seen by one of its members. What moves on which hop is found once: it is the same for
/// all that travels, whatever its heads.
class Axis {
 public:
  struct Options {
    const Route* route = nullptr;  ///< Of the tiles that travel. Outlives the axis.
    const Route* home = nullptr;   ///< Of the sums.
    int me = 0;
    Lane lane = 1;       ///< Of the tiles.
    Lane back_lane = 2;  ///< Of the sums.
    Gathered gathered = Gathered::Apart;
    std::function<Rank(int member)> rank;
    std::function<std::vector<int>(int origin)> blocks;
    std::function<bool(int member, int block)> needs;
  };
  Axis(ProgramBuilder& builder, Options options);

  /// Emits the hops of some heads of `tensors`. Returns what becomes usable, the rank's own first
  /// unless it is usable with the rest.
  std::vector<Held> spread(const std::vector<Tensor>& tensors, const std::vector<int>& own_tiles,
                           Heads heads, const Departure& departure);

  /// Adds cleared partial tiles for the results of what is held, but where there are some.
  void open_sums(std::vector<Held>& held, const std::vector<Tensor>& tensors);

  /// All parts of one tile as one. Requires that they are, or that there is one.
  static Held joined(const std::vector<Held>& parts);

  /// The part of a sum that is the rank's own.
  View own_sum(const std::vector<Held>& held, int tensor) const;

  /// Emits the hops that bring the sums home, and their merge or addition. Returns the step in
  /// which the own sum is complete. `ready` as in movement.h.
  using Ready = Route::Ready;
  int collect(const std::vector<Held>& held, const Ready& ready);
  /// The same of slices of heads, each ready one step after the one before. Returns the step of the
  /// last.
  int collect(std::span<const std::vector<Held>> slices, const Ready& ready);

 private:
  /// A hop and the blocks that make it.
  struct Move {
    Hop hop;
    BlockIds blocks;
  };
  /// What becomes usable together, so many hops after the departure.
  struct Arrival {
    int usable = 0;
    std::vector<int> origins;
    BlockIds blocks;
  };

  template <class Keep>
  std::vector<int> blocks_where(int origin, const Keep& keep) const;
  std::vector<Move> moves(const std::vector<Hop>& hops) const;
  std::vector<int> needed_of(int origin) const;
  void find_arrivals();
  bool gathers() const {
    return options_.gathered != Gathered::Apart && options_.route->size() > 1;
  }
  std::vector<int> gather(const std::vector<Tensor>& tensors, const std::vector<int>& own_tiles,
                          Heads heads, int step);
  std::vector<int> holders(const std::vector<Held>& held) const;
  int collect(const std::vector<Held>& held, const std::vector<Move>& out,
              const std::vector<Move>& in, const Ready& ready, int later);
  void combine(int step, const Held& into, const std::vector<int>& scratch);

  ProgramBuilder& builder_;
  Options options_;
  std::vector<Move> out_;
  std::vector<Move> in_;
  std::vector<Arrival> arrivals_;  ///< In the order in which they are usable; also the own part.
};

}  // namespace armillary::plan
