// Rows become the best row of each strategy name at each point, and these become lines or cells.
// Rows of strategies that do not fit in memory are left out.
#include "armillary/sweep/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/spec.h"

namespace armillary::sweep {
namespace {

/// Names by number.
constexpr std::array<std::string_view, 3> kPlots{"speedup", "winners", "scaling"};

/// Times so close are those of one plan under two names: usp with u = P is ulysses.
constexpr double kSame = 1e-6;
bool is_same(double a, double b) {
  return std::abs(a - b) <= kSame * std::max(a, b);
}

/// The place of a name in the registry. It is the look of the strategy in every chart, and of two
/// names for one plan the first is shown.
int look_of(const std::string& name) {
  const std::vector<plan::StrategyInfo> infos = plan::strategies();
  const auto at = std::find_if(infos.begin(), infos.end(),
                               [&](const plan::StrategyInfo& info) { return info.name == name; });
  return static_cast<int>(at - infos.begin());
}

/// The fastest row of each strategy name that fits at a point, by the look of the name.
using Best = std::map<int, const Row*>;

/// Points in the order of the rows, each once, with its best rows. `auto` is a choice among the
/// others, so it is left out where its plan is that of another.
std::vector<std::pair<Point, Best>> best_rows(const std::vector<Row>& rows) {
  std::vector<std::pair<Point, Best>> all;
  for (const Row& row : rows) {
    if (all.empty() || all.back().first != row.point) all.emplace_back(row.point, Best{});
    if (!row.times.fits) continue;
    const Row*& best = all.back().second[look_of(row.times.strategy.name)];
    if (best == nullptr || row.times.total_s() < best->times.total_s()) best = &row;
  }
  for (auto& [point, best] : all) {
    const auto automatic = best.find(look_of("auto"));
    if (automatic == best.end()) continue;
    const double total_s = automatic->second->times.total_s();
    const bool known = std::any_of(rows.begin(), rows.end(), [&, at = point](const Row& row) {
      return row.point == at && row.times.strategy.name != "auto" &&
             is_same(row.times.total_s(), total_s);
    });
    if (known) best.erase(automatic);
  }
  return all;
}

/// A number of a point, as an axis of a chart.
struct Axis {
  std::string name;
  std::string flag;
  std::function<double(const Point&)> value;
  std::set<double> values;
};

/// The ranges that have several values: ranks, tokens, heads, bandwidth. If lengths grow with the
/// ranks, it is the tokens of a rank.
std::vector<Axis> axes_of(const std::vector<Point>& points) {
  std::vector<Axis> axes{
      {"ranks", "--world", [](const Point& p) { return static_cast<double>(p.world); }, {}},
      {"tokens", "--seq", [](const Point& p) { return static_cast<double>(p.seq); }, {}},
      {"query heads", "--heads", [](const Point& p) { return static_cast<double>(p.heads); }, {}},
      {"bandwidth of all links, as a factor",
       "--bandwidth",
       [](const Point& p) { return p.bandwidth; },
       {}}};
  for (Axis& axis : axes) {
    for (const Point& point : points) axis.values.insert(axis.value(point));
  }
  Axis of_a_rank{"tokens of a rank", "--seq",
                 [](const Point& p) { return static_cast<double>(p.seq) / p.world; }};
  for (const Point& point : points) of_a_rank.values.insert(of_a_rank.value(point));
  if (of_a_rank.values.size() < axes[1].values.size()) axes[1] = of_a_rank;
  std::erase_if(axes, [](const Axis& axis) { return axis.values.size() < 2; });
  return axes;
}

std::vector<Axis> axes_of(const std::vector<Row>& rows) {
  std::vector<Point> points;
  points.reserve(rows.size());
  for (const Row& row : rows) points.push_back(row.point);
  return axes_of(points);
}

/// Refuses ranges that a chart of lines against ranks cannot show: it would drop their values.
void refuse_more_than_ranks(const std::vector<Axis>& axes, Plot plot) {
  for (const Axis& axis : axes) {
    if (axis.flag == "--world") continue;
    fail<InvalidArgument>(
        "sweep: {} values of {} given; the chart {} has one axis, --world: one value of {} is "
        "required, or the chart winners, which has two axes",
        axis.values.size(), axis.flag, to_string(plot), axis.flag);
  }
}

/// Refuses ranges that are not the two of a map.
void refuse_other_than_two(const std::vector<Axis>& axes) {
  if (axes.size() < 2) {
    fail<InvalidArgument>(
        "sweep: {} given with several values; a map of the fastest strategies requires two of "
        "--world, --seq, --heads and --bandwidth",
        axes.empty() ? "nothing" : axes[0].flag);
  }
  if (axes.size() > 2) {
    std::string flags;
    for (const Axis& axis : axes) flags += (flags.empty() ? "" : ", ") + axis.flag;
    fail<InvalidArgument>(
        "sweep: several values of each of {} given; the chart winners has two axes: one value of "
        "all others is required",
        flags);
  }
}

/// The points of a chart of lines: one for each world.
std::vector<std::pair<Point, Best>> line_points(const std::vector<Row>& rows, Plot plot) {
  refuse_more_than_ranks(axes_of(rows), plot);
  return best_rows(rows);
}

/// The keys of a strategy as a line of a cell: `inner=ulysses, u=4`.
std::string keys_of(const plan::Strategy& strategy) {
  std::string text;
  for (const auto& [key, value] : strategy.keys) {
    text += fmt::format("{}{}{}{}", text.empty() ? "" : ", ", key, value.empty() ? "" : "=", value);
  }
  return text;
}

/// Whether all points of a line lie on those of another.
bool lies_on(const Series& line, const Series& other) {
  for (std::size_t i = 0; i < line.x.size(); ++i) {
    const auto at = std::find(other.x.begin(), other.x.end(), line.x[i]);
    if (at == other.x.end() || !is_same(other.y[at - other.x.begin()], line.y[i])) return false;
  }
  return true;
}

/// One line for each strategy name, in the order of the registry. A line that lies on an earlier
/// one is left out.
std::vector<Series> lines(const std::vector<std::pair<Point, Best>>& points,
                          const std::function<double(const Row&, const Best&)>& y) {
  std::map<int, Series> series;
  for (const auto& [point, best] : points) {
    for (const auto& [look, row] : best) {
      const plan::Strategy& strategy = row->times.strategy;
      Series& line = series[look];
      line.name = strategy.name == "auto" ? to_string(strategy) : strategy.name;
      line.look = look;
      line.x.push_back(point.world);
      line.y.push_back(y(*row, best));
      line.details.push_back(
          fmt::format("{}, {}", to_string(strategy), count_of(point.world, "rank")));
    }
  }
  std::vector<Series> all;
  all.reserve(series.size());
  for (auto& [look, made] : series) {
    Series& line = made;
    // `auto` is a line only if it has a plan of its own at every point.
    if (look == look_of("auto") && line.x.size() < points.size()) continue;
    const bool is_known = std::any_of(all.begin(), all.end(),
                                      [&](const Series& other) { return lies_on(line, other); });
    if (!is_known) all.push_back(std::move(line));
  }
  return all;
}

/// 65536 as 64K, 1048576 as 1M.
std::string short_number(double value) {
  constexpr double kKibi = 1024;
  if (value >= kKibi * kKibi) return fmt::format("{:.4g}M", value / kKibi / kKibi);
  if (value >= 4 * kKibi) return fmt::format("{:.4g}K", value / kKibi);
  return fmt::format("{:.4g}", value);
}

/// Tokens of each world, where they differ: weak scaling.
std::vector<std::string> token_ticks(const std::vector<std::pair<Point, Best>>& points) {
  std::map<int, std::int64_t> tokens;
  std::set<std::int64_t> different;
  for (const auto& [point, best] : points) {
    tokens[point.world] = point.seq;
    different.insert(point.seq);
  }
  std::vector<std::string> ticks;
  if (different.size() < 2) return ticks;
  for (const auto& [world, seq] : tokens) {
    ticks.push_back(short_number(static_cast<double>(seq)) + " tokens");
  }
  return ticks;
}

/// Lines of time of Ring over time; Ring itself is the line at 1.
std::string speedup(const Plotted& plotted) {
  const auto points = line_points(plotted.rows, Plot::Speedup);
  const int ring = look_of("ring");
  for (const auto& [point, best] : points) {
    if (!best.contains(ring)) {
      fail<InvalidArgument>(
          "sweep: no row of ring that fits with {} and {}; a speed-up over Ring "
          "requires one",
          count_of(point.world, "rank"), count_of(point.seq, "token"));
    }
  }
  return to_svg(LineChart{.title = "Speed-up of one attention layer over Ring",
                          .subtitle = plotted.subtitle,
                          .x_name = "ranks",
                          .y_name = "times as fast as ring",
                          .series = lines(points,
                                          [&](const Row& row, const Best& best) {
                                            return best.at(ring)->times.total_s() /
                                                   row.times.total_s();
                                          }),
                          .ticks = token_ticks(points),
                          .ratio = true});
}

/// Lines of FLOP/s: a flat line is perfect scaling.
std::string scaling(const Plotted& plotted) {
  const auto points = line_points(plotted.rows, Plot::Scaling);
  const std::vector<std::string> ticks = token_ticks(points);
  return to_svg(LineChart{
      .title = ticks.empty() ? "Strong scaling of one attention layer"
                             : "Weak scaling of one attention layer",
      .subtitle = plotted.subtitle,
      .x_name = ticks.empty() ? "ranks, for the same tokens" : "ranks, and tokens in proportion",
      .y_name = "TFLOP/s of each rank, visible pairs only; a flat line is perfect scaling",
      .series =
          lines(points, [](const Row& row, const Best&) { return row.flops_per_rank / 1e12; }),
      .ticks = ticks});
}

/// The fastest strategy with its keys, and by how much the next one is slower that is not the same
/// plan under another name.
MapChart::Cell cell_of(const Best& best) {
  std::vector<std::pair<int, const Row*>> rows(best.begin(), best.end());
  if (rows.empty()) return {.kind = "nothing", .look = 0, .text = "nothing fits\nin memory"};
  const auto least = std::min_element(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.second->times.total_s() < b.second->times.total_s();
  });
  const double least_s = least->second->times.total_s();
  // Equal ones have the order of the registry: the first is shown.
  const auto winner = std::find_if(rows.begin(), rows.end(), [&](const auto& one) {
    return is_same(one.second->times.total_s(), least_s);
  });
  const plan::Strategy& strategy = winner->second->times.strategy;
  MapChart::Cell cell{.kind = strategy.name, .look = winner->first, .text = strategy.name};
  const std::string keys = keys_of(strategy);
  if (!keys.empty()) cell.text += "\n" + keys;
  const Row* next = nullptr;
  for (const auto& [look, row] : rows) {
    const double total_s = row->times.total_s();
    if (is_same(total_s, least_s) || (next && next->times.total_s() <= total_s)) continue;
    next = row;
  }
  if (next != nullptr) {
    const double percent = 100 * (next->times.total_s() / least_s - 1);
    cell.text += fmt::format("\nthen {} +{:.{}f} %", next->times.strategy.name, percent,
                             percent < 10 ? 1 : 0);
  }
  return cell;
}

/// The map over the two ranges.
std::string winners(const Plotted& plotted) {
  const std::vector<Axis> axes = axes_of(plotted.rows);
  refuse_other_than_two(axes);
  const Axis& across = axes[0];
  const Axis& down = axes[1];
  MapChart chart{.title = "The fastest strategy, and by how much the next is slower",
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

void check_ranges(const std::vector<Point>& points, Plot plot) {
  if (plot == Plot::Winners) {
    refuse_other_than_two(axes_of(points));
  } else {
    refuse_more_than_ranks(axes_of(points), plot);
  }
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
