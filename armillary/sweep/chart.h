// chart.h: charts as SVG, light or dark as the reader's page is. They know nothing of sweeps.
//
// Lines and cells are told apart by colour, and lines also by the shape of their marks, so that
// charts can be read in grey and with any colour vision. Names stand beside what they name.
#pragma once

#include <string>
#include <vector>

namespace armillary::sweep {

/// Looks: a colour and a shape each. A look that is larger starts again from the first.
inline constexpr int kLooks = 11;

/// One line of a chart: points in ascending x.
struct Series {
  std::string name;
  int look = 0;
  std::vector<double> x = {};             ///< Above 0.
  std::vector<double> y = {};             ///< As many; not negative.
  std::vector<std::string> details = {};  ///< As many, or none: tooltips of the points.
};

/// Lines over an x axis with one tick for each value; x is drawn in proportion to its logarithm.
struct LineChart {
  std::string title;
  std::string subtitle;  ///< Lines below it, for the conditions, with `\n` between them.
  std::string x_name;
  std::string y_name;
  std::vector<Series> series;
  /// Second lines of the ticks, by x in ascending order; none if it is empty.
  std::vector<std::string> ticks = {};
  /// y is compared with 1, where a line is drawn; it is drawn in proportion to its logarithm if the
  /// values are far apart.
  bool ratio = false;
};
/// The names of the lines stand beside their ends. Requires x > 0 and y >= 0, and with `ratio` y
/// > 0.
std::string to_svg(const LineChart& chart);

/// A map: rows and columns of cells, each of a named kind.
struct MapChart {
  struct Cell {
    std::string kind;  ///< Empty: no cell.
    int look = 0;      ///< That of the kind.
    std::string text;  ///< Lines of the cell, with `\n` between them; the first is the largest.
  };
  std::string title;
  std::string subtitle;
  std::string x_name;
  std::string y_name;
  std::vector<std::string> columns = {};
  std::vector<std::string> rows;              ///< From the top.
  std::vector<std::vector<Cell>> cells = {};  ///< By row, then column.
};
std::string to_svg(const MapChart& chart);

}  // namespace armillary::sweep
