// Rows become the best row of each strategy name at each point, and these become lines or cells.
// Rows of strategies that do not fit in memory are left out.
#include "armillary/sweep/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>

#include "armillary/core/error.h"
#include "armillary/core/spec.h"

namespace armillary::sweep {
namespace {

/// Names by number.
constexpr std::array<std::string_view, 3> kPlots{"speedup", "winners", "scaling"};

/// The fastest row that fits, by strategy name, at one point.
using Best = std::map<std::string, const Row*>;

/// Points in the order of the rows, each once, with its best rows.
std::vector<std::pair<Point, Best>> best_rows(const std::vector<Row>& rows) {
  std::vector<std::pair<Point, Best>> all;
  for (const Row& row : rows) {
    if (all.empty() || all.back().first != row.point) all.emplace_back(row.point, Best{});
    if (!row.times.fits) continue;
    const Row*& best = all.back().second[row.times.strategy.name];
    if (best == nullptr || row.times.total_s() < best->times.total_s()) best = &row;
  }
  return all;
}

/// The points of a chart of lines: one for each world, of the first other numbers.
std::vector<std::pair<Point, Best>> line_points(const std::vector<Row>& rows) {
  std::vector<std::pair<Point, Best>> points;
  std::set<int> worlds;
  for (auto& point : best_rows(rows)) {
    if (worlds.insert(point.first.world).second) points.push_back(std::move(point));
  }
  return points;
}

/// One line for each strategy name, the names in alphabetical order.
std::vector<Series> lines(const std::vector<std::pair<Point, Best>>& points,
                          const std::function<double(const Row&, const Best&)>& y) {
  std::map<std::string, Series> series;
  for (const auto& [point, best] : points) {
    for (const auto& [name, row] : best) {
      Series& line = series[name];
      line.name = name;
      line.x.push_back(point.world);
      line.y.push_back(y(*row, best));
    }
  }
  std::vector<Series> all;
  all.reserve(series.size());
  for (auto& [name, line] : series) all.push_back(std::move(line));
  return all;
}

/// Lines of time of Ring over time; Ring itself is the line at 1.
std::string speedup(const Plotted& plotted) {
  const auto points = line_points(plotted.rows);
  for (const auto& [point, best] : points) {
    if (!best.contains("ring")) {
      fail<InvalidArgument>(
          "sweep: no row of ring that fits with {} ranks and {} tokens; a speed-up over Ring "
          "requires one",
          point.world, point.seq);
    }
  }
  return to_svg(LineChart{.title = "Speed-up over Ring",
                          .subtitle = plotted.subtitle,
                          .x_name = "ranks",
                          .y_name = "time of Ring / time",
                          .series = lines(points,
                                          [](const Row& row, const Best& best) {
                                            return best.at("ring")->times.total_s() /
                                                   row.times.total_s();
                                          }),
                          .ratio = true});
}

/// Lines of FLOP/s: a flat line is perfect scaling.
std::string scaling(const Plotted& plotted) {
  return to_svg(LineChart{
      .title = "Scaling",
      .subtitle = plotted.subtitle,
      .x_name = "ranks",
      .y_name = "TFLOP/s of a rank",
      .series = lines(line_points(plotted.rows),
                      [](const Row& row, const Best&) { return row.flops_per_rank / 1e12; })});
}

/// A number of a point, as an axis of the map.
struct Axis {
  std::string name;
  std::function<double(const Point&)> value;
  std::set<double> values;
};

/// The ranges that have several values: ranks, tokens, heads, bandwidth.
std::vector<Axis> axes_of(const std::vector<Row>& rows) {
  std::vector<Axis> axes{{"ranks", [](const Point& p) { return static_cast<double>(p.world); }, {}},
                         {"tokens", [](const Point& p) { return static_cast<double>(p.seq); }, {}},
                         {"heads", [](const Point& p) { return static_cast<double>(p.heads); }, {}},
                         {"bandwidth", [](const Point& p) { return p.bandwidth; }, {}}};
  for (Axis& axis : axes) {
    for (const Row& row : rows) axis.values.insert(axis.value(row.point));
  }
  std::erase_if(axes, [](const Axis& axis) { return axis.values.size() < 2; });
  return axes;
}

/// 65536 as 64K, 1048576 as 1M.
std::string short_number(double value) {
  constexpr double kKibi = 1024;
  if (value >= kKibi * kKibi) return fmt::format("{:.4g}M", value / kKibi / kKibi);
  if (value >= 4 * kKibi) return fmt::format("{:.4g}K", value / kKibi);
  return fmt::format("{:.4g}", value);
}

/// The fastest strategy, and by how much the next name is slower.
MapChart::Cell cell_of(const Best& best) {
  std::vector<const Row*> rows;
  for (const auto& [name, row] : best) rows.push_back(row);
  if (rows.empty()) return {"nothing fits", "nothing fits"};
  std::stable_sort(rows.begin(), rows.end(), [](const Row* a, const Row* b) {
    return a->times.total_s() < b->times.total_s();
  });
  const plan::Strategy& winner = rows[0]->times.strategy;
  std::string text = winner.name;
  if (rows.size() > 1) {
    const double slower = rows[1]->times.total_s() / rows[0]->times.total_s() - 1;
    text += fmt::format("\nnext +{:.1f} %", 100 * slower);
  }
  return {winner.name, text};
}

/// The map over the first two ranges; of further ranges, it has the first value.
std::string winners(const Plotted& plotted) {
  const std::vector<Axis> axes = axes_of(plotted.rows);
  if (axes.size() < 2) {
    fail<InvalidArgument>(
        "sweep: {} of the ranges has several values; a map of the fastest strategies requires two",
        axes.size());
  }
  const Axis& across = axes[0];
  const Axis& down = axes[1];
  MapChart chart{.title = "The fastest strategy",
                 .subtitle = plotted.subtitle,
                 .x_name = across.name,
                 .y_name = down.name};
  for (const double value : across.values) chart.columns.push_back(short_number(value));
  for (const double value : down.values) chart.rows.push_back(short_number(value));
  std::reverse(chart.rows.begin(), chart.rows.end());
  chart.cells.resize(down.values.size());
  for (auto& row : chart.cells) row.resize(across.values.size());
  const auto place = [](const Axis& axis, const Point& point) {
    return std::distance(axis.values.begin(), axis.values.find(axis.value(point)));
  };
  for (const auto& [point, best] : best_rows(plotted.rows)) {
    const auto r = static_cast<std::ptrdiff_t>(down.values.size()) - 1 - place(down, point);
    MapChart::Cell& cell = chart.cells[r][place(across, point)];
    if (cell.kind.empty()) cell = cell_of(best);
  }
  return to_svg(chart);
}

}  // namespace

std::string_view to_string(Plot plot) {
  return kPlots[static_cast<std::size_t>(plot)];
}

Plot parse_plot(std::string_view text) {
  return static_cast<Plot>(parse_choice("--plot", text, kPlots));
}

std::string to_svg(const Plotted& plotted, Plot plot) {
  switch (plot) {
    case Plot::Speedup:
      return speedup(plotted);
    case Plot::Winners:
      return winners(plotted);
    case Plot::Scaling:
      break;
  }
  return scaling(plotted);
}

}  // namespace armillary::sweep
