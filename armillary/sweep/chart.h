// chart.h: charts as SVG, light or dark as the reader's page is. They know nothing of sweeps.
#pragma once

#include <string>
#include <vector>

namespace armillary::sweep {

/// One line of a chart: points in ascending x.
struct Series {
  std::string name;
  std::vector<double> x;  ///< Above 0.
  std::vector<double> y;  ///< As many; not negative.
};

/// Lines over an x axis with one tick for each value; x is drawn in proportion to its logarithm.
struct LineChart {
  std::string title;
  std::string subtitle;  ///< A line below it, for the conditions.
  std::string x_name;
  std::string y_name;
  std::vector<Series> series;  ///< Colours are given in this order.
  bool ratio = false;          ///< A line at y = 1, to which the others are compared.
};
/// The names of the lines stand beside their ends. Requires x > 0 and y >= 0.
std::string to_svg(const LineChart& chart);

/// A map: rows and columns of cells, each of a named kind.
struct MapChart {
  struct Cell {
    std::string kind;  ///< The colour; empty: no cell.
    std::string text;  ///< Lines of the cell, with `\n` between them.
  };
  std::string title;
  std::string subtitle;
  std::string x_name;
  std::string y_name;
  std::vector<std::string> columns = {};
  std::vector<std::string> rows;              ///< From the top.
  std::vector<std::vector<Cell>> cells = {};  ///< By row, then column.
};
/// Kinds get their colours in the order in which they are met, row by row.
std::string to_svg(const MapChart& chart);

}  // namespace armillary::sweep
