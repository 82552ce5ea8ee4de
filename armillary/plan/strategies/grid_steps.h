// grid_steps.h: in which step what travels on a grid leaves, is there, meets and is complete.
//
//   AtOnce          c0   c1   c2              RowsLast        c0   c1   c2
//                   r0*  r0*  r0*                             r0*  r0*  r0*
//                        r1*  r1*                                       r1*  (with all of c)
//                             r2*                                       r2*
//   RowsInside      c0             c1                 K, V (c) go on when the queries (r) have been
//                   r0*  r1*  r2*  r0*  r1*  ..       round; ColumnsInside: the reverse
//
// All members of an axis have the same steps, moved by their places, so each knows those of all.
#pragma once

#include "armillary/plan/strategies/axis.h"
#include "armillary/plan/strategies/grid.h"

namespace armillary::plan {

class GridSteps {
 public:
  /// Of the rank at `place`. Tiles of the columns can leave in `start`, the first step that
  /// computes; those of the rows in `row_start`, which is the same or the step after.
  GridSteps(const Grid& grid, const GridRoutes& routes, Place place, Pass pass, int start,
            int row_start);

  Departure columns(int slice) const;  ///< Of K, V.
  Departure rows() const { return rows_; }

  /// Step in which two tiles meet, each usable from some step on.
  int meet(const Held& row, const Held& column) const;
  /// Whether a tile of the row meets all tiles of the column at once, in one call.
  bool meets_whole_columns(const Held& row) const;

  /// Step in which a member has met all keys with a tile of the row, or all queries with one of the
  /// column: of its first slice, each other one is a step later.
  int row_ready(int member, int origin) const;
  int column_ready(int member, int origin) const;

 private:
  bool inside() const {
    return grid_.order == GridOrder::RowsInside || grid_.order == GridOrder::ColumnsInside;
  }
  int arrival(const Route& route, int member, int origin) const;
  int meet(int row, int column) const;
  int turn(int usable) const;

  const Grid& grid_;
  const GridRoutes& routes_;
  Place place_;
  Departure columns_;
  Departure rows_;
  int last_column_ = 0;  ///< Step in which the last tile of the column is usable.
  int last_row_ = 0;
  /// Steps between the first and the last tile of the column that the last tile of the row meets.
  int last_meeting_ = 0;
};

}  // namespace armillary::plan
