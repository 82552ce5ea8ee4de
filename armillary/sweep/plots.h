// plots.h: rows of a sweep as charts: which strategy, by how much, and how far it scales.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "armillary/sweep/chart.h"
#include "armillary/sweep/sweep.h"

namespace armillary::sweep {

/// Kinds of charts.
enum class Plot : std::uint8_t {
  Speedup,  ///< Time of Ring over that of each strategy, against the number of ranks.
  Winners,  ///< The fastest strategy at each point of the two ranges with several values.
  Scaling,  ///< FLOP/s of a rank against the number of ranks.
};
std::string_view to_string(Plot plot);
/// @throws InvalidArgument with the nearest name.
Plot parse_plot(std::string_view text);

/// Rows with the words for titles.
struct Plotted {
  std::vector<Row> rows;  ///< As sweep() makes them.
  std::string subtitle;   ///< The cluster and the problem.
};

/// Refuses ranges that a chart cannot show, before anything is simulated.
/// @throws InvalidArgument for Speedup and Scaling with another range than ranks that has several
/// values, and for Winners unless two ranges have several.
void check_ranges(const std::vector<Point>& points, Plot plot);

/// Strategies of one name are one line or kind, with one look in all charts: at every point, the
/// fastest of them that fits in memory. A plan that has two names is shown once, under the first of
/// the registry; `auto` only where no other strategy has its plan. The tokens of a rank are the
/// range if lengths grow with the ranks.
/// @throws InvalidArgument for Speedup without rows of Ring, and as check_ranges().
std::string to_svg(const Plotted& plotted, Plot plot);

}  // namespace armillary::sweep
