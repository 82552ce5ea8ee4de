// grid_steps.h: the step in which each tile of a grid leaves, arrives, is attended and is complete.
//
// In the pictures time goes to the right, one column per step. c0 is the first tile of K, V that a
// rank has on its column and r0 the first tile of its row, both its own. A star marks an attention:
// of that row tile with all tiles of the column that are there and that it has not met before.
//
//   AtOnce          c0   c1   c2              RowsLast        c0   c1   c2
//                   r0*  r0*  r0*                             r0*  r0*  r0*
//                        r1*  r1*                                       r1*  (with all of c)
//                             r2*                                       r2*
//   RowsInside      c0             c1                 A hop of the column takes a whole round of
//                   r0*  r1*  r2*  r0*  r1*  ..       the row; ColumnsInside: the reverse.
//
// All members of an axis have the same steps, shifted by their places, so a rank knows the steps of
// all other members without messages.
#pragma once

#include "armillary/plan/strategies/axis.h"
#include "armillary/plan/strategies/grid.h"

namespace armillary::plan {

/// One rank in one pass.
struct GridStepsOptions {
  GridPlace place;  ///< The rank's place in the grid.
  Pass pass = Pass::Forward;
  /// First step that can compute; tiles of the columns leave in it.
  int start = 0;
  /// Step in which tiles of the rows leave: `start` or the step after it.
  int row_start = 0;
};

/// The steps of one rank in one pass.
class GridSteps {
 public:
  /// `grid` and `routes` must outlive the object.
  GridSteps(const Grid& grid, const GridRoutes& routes, const GridStepsOptions& options);

  /// Departures of K, V on the column, one step later for each slice, and of the row's tiles.
  Departure columns(int slice) const;
  Departure rows() const { return rows_; }

  /// Step in which a tile of the row is attended with a tile of the column.
  int meet(const Arrived& row, const Arrived& column) const;
  /// True if the tile of the row is attended with all tiles of the column at once, in one call.
  bool meets_whole_columns(const Arrived& row) const;

  /// Steps in which a member has attended the origin's row tile with all keys of its column, and
  /// the origin's column tile with all queries of its row: the `ready` of Route::collect.
  /// `column_ready` is for the first slice; each further slice is ready one step later.
  int row_ready(int member, int origin) const;
  int column_ready(int member, int origin) const;

 private:
  bool inside() const {
    return grid_.order == GridOrder::RowsInside || grid_.order == GridOrder::ColumnsInside;
  }
  int arrival(const Route& route, int member, int origin) const;
  int meet(int row, int column) const;
  int last_row_delay(int usable) const;

  const Grid& grid_;
  const GridRoutes& routes_;
  GridPlace place_;
  Departure columns_;
  Departure rows_;
  /// Steps in which the last tile of the column and of the row are usable.
  int last_column_ = 0;
  int last_row_ = 0;
  /// Extra steps over which the attention of the last row tile is spread: 0 except in backward with
  /// RowsLast, where that tile is attended with the column tile by tile.
  int last_row_spread_ = 0;
};

}  // namespace armillary::plan
