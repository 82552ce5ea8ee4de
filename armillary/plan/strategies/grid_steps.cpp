// grid_steps.cpp: arithmetic of steps. Steps are counted in two ways: absolute ones, as in a plan,
// and steps of a route, as in Route::usable, which `Departure` turns into absolute ones.
#include "armillary/plan/strategies/grid_steps.h"

#include <algorithm>

namespace armillary::plan {

GridSteps::GridSteps(const Grid& grid, const GridRoutes& routes, const GridStepsOptions& options)
    : grid_(grid), routes_(routes), place_(options.place) {
  const int start = options.start;
  const int row_start = options.row_start;
  const bool rows_inside = grid.order == GridOrder::RowsInside;
  const bool columns_inside = grid.order == GridOrder::ColumnsInside;
  const bool rows_last = grid.order == GridOrder::RowsLast;
  // Nested orders begin to attend when both sides can leave; the columns travel before that.
  const int begin = inside() && grid.rk > 1 ? row_start : start;

  // An outer axis has a pace of one hop per round of the inner axis.
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

  const bool tile_by_tile = rows_last && grid.rk > 1 && options.pass == Pass::Backward;
  last_row_spread_ = tile_by_tile ? routes.column.last_usable() : 0;
}

Departure GridSteps::columns(int slice) const {
  Departure departure = columns_;
  departure.own_usable += slice;
  departure.first += slice;
  departure.begin += slice;
  return departure;
}

/// Steps of the route until a member computes with the origin's tile; a gather that is attended in
/// one call computes with all tiles when the last has arrived.
int GridSteps::arrival(const Route& route, int member, int origin) const {
  return grid_.one_call ? route.last_usable() : route.usable(member, origin);
}

/// Step in which two tiles are attended, given the steps in which they are usable. In a nested
/// order one of the two is the beginning of a round, the other a place in it.
int GridSteps::meet(int row, int column) const {
  return inside() ? row + column - columns_.begin : std::max(row, column);
}

/// Extra steps before the last row tile is attended with the column tile that is usable after so
/// many steps of its route. Tiles are taken in the order in which their sums leave; the rank's own
/// keys (usable == 0), whose sum stays, are last.
int GridSteps::last_row_delay(int usable) const {
  return std::min(usable == 0 ? last_row_spread_ : usable - 1, last_row_spread_);
}

int GridSteps::meet(const Arrived& row, const Arrived& column) const {
  // Each round has tiles of its own: both steps are absolute.
  if (grid_.resend_each_round) return std::max(row.usable, column.usable);
  const int usable = routes_.column.usable(place_.i, column.origins.front());
  return meet(row.usable, column.usable) + (row.usable == last_row_ ? last_row_delay(usable) : 0);
}

bool GridSteps::meets_whole_columns(const Arrived& row) const {
  return grid_.order == GridOrder::RowsLast && row.usable > last_column_ &&
         (last_row_spread_ == 0 || row.usable < last_row_);
}

int GridSteps::row_ready(int member, int origin) const {
  const int arrived = arrival(routes_.row, member, origin);
  const int usable = arrived == 0 ? rows_.own_usable : rows_.begin + arrived * rows_.pace;
  const bool last = arrived == routes_.row.last_usable();
  return meet(usable, last_column_) + (last ? last_row_spread_ : 0);
}

int GridSteps::column_ready(int member, int origin) const {
  const int usable = columns_.begin + arrival(routes_.column, member, origin) * columns_.pace;
  return meet(usable, last_row_) + last_row_delay(routes_.column.usable(member, origin));
}

}  // namespace armillary::plan
