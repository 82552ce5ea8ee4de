#include "armillary/plan/strategies/grid_steps.h"

#include <algorithm>

namespace armillary::plan {

GridSteps::GridSteps(const Grid& grid, const GridRoutes& routes, Place place, Pass pass, int start,
                     int row_start)
    : grid_(grid), routes_(routes), place_(place) {
  const bool rows_inside = grid.order == GridOrder::RowsInside;
  const bool columns_inside = grid.order == GridOrder::ColumnsInside;
  const bool rows_last = grid.order == GridOrder::RowsLast;
  // Rounds begin when both can leave; until then the columns are on their way.
  const int begin = inside() && grid.rk > 1 ? row_start : start;
  columns_ = {.own_usable = begin,
              .first = start,
              .begin = begin,
              .pace = rows_inside ? routes.row.last_usable() + 1 : 1};
  last_column_ = columns(grid.slices - 1).begin + routes.column.last_usable() * columns_.pace;
  rows_ = {.own_usable = begin,
           .first = row_start,
           .begin = rows_last ? std::max(row_start, last_column_) : row_start,
           .pace = columns_inside ? routes.column.last_usable() + 1 : 1};
  last_row_ = grid.rk == 1 ? begin : rows_.begin + routes.row.last_usable() * rows_.pace;
  const bool tile_by_tile = rows_last && grid.rk > 1 && pass == Pass::Backward;
  last_meeting_ = tile_by_tile ? routes.column.last_usable() : 0;
}

Departure GridSteps::columns(int slice) const {
  Departure departure = columns_;
  departure.own_usable += slice;
  departure.first += slice;
  departure.begin += slice;
  return departure;
}

/// Steps after the departure in which a member computes with a tile of an axis.
int GridSteps::arrival(const Route& route, int member, int origin) const {
  return grid_.one_call ? route.last_usable() : route.usable(member, origin);
}

int GridSteps::meet(int row, int column) const {
  return inside() ? row + column - columns_.begin : std::max(row, column);
}

/// Steps after it is there in which the last tile of the row meets a tile of the column, usable so
/// long after the start: in the order in which sums leave, those of the own keys last.
int GridSteps::turn(int usable) const {
  return std::min(usable == 0 ? last_meeting_ : usable - 1, last_meeting_);
}

int GridSteps::meet(const Held& row, const Held& column) const {
  if (grid_.anew) return std::max(row.usable, column.usable);
  const int usable = routes_.column.usable(place_.i, column.origins.front());
  return meet(row.usable, column.usable) + (row.usable == last_row_ ? turn(usable) : 0);
}

bool GridSteps::meets_whole_columns(const Held& row) const {
  return grid_.order == GridOrder::RowsLast && row.usable > last_column_ &&
         (last_meeting_ == 0 || row.usable < last_row_);
}

int GridSteps::row_ready(int member, int origin) const {
  const int arrived = arrival(routes_.row, member, origin);
  const int usable = arrived == 0 ? rows_.own_usable : rows_.begin + arrived * rows_.pace;
  const bool last = arrived == routes_.row.last_usable();
  return meet(usable, last_column_) + (last ? last_meeting_ : 0);
}

int GridSteps::column_ready(int member, int origin) const {
  const int usable = columns_.begin + arrival(routes_.column, member, origin) * columns_.pace;
  return meet(usable, last_row_) + turn(routes_.column.usable(member, origin));
}

}  // namespace armillary::plan
