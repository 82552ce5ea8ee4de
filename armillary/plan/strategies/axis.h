// axis.h: tiles that travel along one axis of the grid, and sums that come back.
#pragma once

#include <functional>
#include <vector>

#include "armillary/plan/strategies/movement.h"
#include "armillary/plan/strategies/program_builder.h"

namespace armillary::plan {

/// Tiles that a rank holds on an axis from one step on: its own, or those that arrived in a step.
struct Held {
  Heads heads;               ///< Of the tiles, or the part of them that is meant.
  std::vector<int> origins;  ///< Members they come from.
  std::vector<int> blocks;   ///< What this rank needs of them; all of its own.
  std::vector<int> tiles;    ///< One per tensor that travels.
  std::vector<int> sums;     ///< One per tensor that comes back.
  int usable = 0;            ///< First step that may compute with the tiles.
};

/// One axis seen by one of its members.
class Axis {
 public:
  struct Options {
    const Route* route = nullptr;  ///< Of the tiles that travel. Outlives the axis.
    const Route* home = nullptr;   ///< Of the sums.
    int me = 0;
    Lane lane = 1;          ///< Of the tiles.
    Lane back_lane = 2;     ///< Of the sums.
    Heads heads;            ///< Of tiles and sums.
    bool one_call = false;  ///< Of a gather: own tiles are copied among those that arrive.
    std::function<Rank(int member)> rank;
    std::function<std::vector<int>(int origin)> blocks;
    std::function<bool(int member, int block)> needs;
  };
  Axis(ProgramBuilder& builder, Options options);

  /// Emits the hops of `tensors`, whose own tiles can be sent from step `departure` on and computed
  /// with from step `own_usable` on. First element: the rank's own.
  std::vector<Held> spread(const std::vector<Tensor>& tensors, const std::vector<int>& own_tiles,
                           int own_usable, int departure);

  /// Adds cleared partial tiles for the results of what is held.
  void open_sums(std::vector<Held>& held, const std::vector<Tensor>& tensors);

  /// The part of a sum that is the rank's own.
  View own_sum(const std::vector<Held>& held, int tensor) const;

  /// Emits the hops that bring the sums home, and their merge or addition. Returns the step in
  /// which the own sum is complete. `ready` as in movement.h.
  using Ready = Route::Ready;
  int collect(const std::vector<Held>& held, const Ready& ready);

 private:
  template <class Keep>
  std::vector<int> blocks_where(int origin, const Keep& keep) const;
  std::vector<int> moving_on(const Hop& hop) const;
  std::vector<std::vector<int>> moving_on(const std::vector<Hop>& hops) const;
  std::vector<int> needed_of(int origin) const;
  std::vector<int> holders(const std::vector<Held>& held) const;
  void combine(int step, const Held& into, const std::vector<int>& scratch);

  ProgramBuilder& builder_;
  Options options_;
};

}  // namespace armillary::plan
