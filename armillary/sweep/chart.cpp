// Charts are text with numbers in it. Colours are classes c0, c1 .. of one style sheet, which has a
// second set for dark pages.
#include "armillary/sweep/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

namespace armillary::sweep {
namespace {

/// Fills and strokes of series and kinds, for light pages and for dark ones.
constexpr std::array<const char*, 11> kLight{"#33691e", "#1565c0", "#c62828", "#6a1b9a",
                                             "#ef6c00", "#00838f", "#8d6e63", "#ad1457",
                                             "#9e9d24", "#3949ab", "#546e7a"};
constexpr std::array<const char*, 11> kDark{"#9ccc65", "#64b5f6", "#ef7370", "#ba85d6",
                                            "#ffa64d", "#4dc9d6", "#bca79d", "#ec77a8",
                                            "#dce36a", "#8f9be8", "#9fb3bd"};

/// Text between tags.
std::string escaped(const std::string& plain) {
  std::string text;
  for (const char c : plain) {
    switch (c) {
      case '<':
        text += "&lt;";
        break;
      case '&':
        text += "&amp;";
        break;
      default:
        text += c;
    }
  }
  return text;
}

/// Colours as classes: `c3` fills, `l3` strokes.
std::string style() {
  std::string text =
      "text{font:12px system-ui,'DejaVu Sans',sans-serif;fill:#1c1e21}.faint{fill:#6b7078}"
      ".grid{stroke:#d9dbde}.one{stroke:#6b7078;stroke-dasharray:4 3}.title{font-size:15px;"
      "font-weight:600}.on{fill:#fff}.page{fill:#fff}path{fill:none;stroke-width:2}";
  std::string dark =
      "text{fill:#e6e7e9}.faint{fill:#9aa0a8}.grid{stroke:#363a40}.page{fill:#15171a}"
      ".on{fill:#15171a}";
  for (std::size_t i = 0; i < kLight.size(); ++i) {
    text += fmt::format(".c{0}{{fill:{1}}}.l{0}{{stroke:{1}}}", i, kLight[i]);
    dark += fmt::format(".c{0}{{fill:{1}}}.l{0}{{stroke:{1}}}", i, kDark[i]);
  }
  return fmt::format("<style>{}@media (prefers-color-scheme:dark){{{}}}</style>\n", text, dark);
}

/// A place on the picture, in pixels.
struct Spot {
  double x = 0;
  double y = 0;
};

/// Text of a class, aligned at the spot: `start`, `middle` or `end`.
std::string label(const Spot& at, const std::string& text, const char* align = "start",
                  const std::string& classes = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n",
                     at.x, at.y, align, classes, escaped(text));
}

/// The opening tag, the style sheet and the titles.
std::string head(double width, double height, const std::string& title,
                 const std::string& subtitle) {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
             "height=\"{1}\" role=\"img\" aria-label=\"{2}\">\n",
             width, height, escaped(title)) +
         style() +
         fmt::format("<rect class=\"page\" width=\"{}\" height=\"{}\"/>\n", width, height) +
         label({14, 24}, title, "start", "title") + label({14, 43}, subtitle, "start", "faint");
}

/// The step of 1, 2 or 5 times a power of ten that cuts a range into about five.
double round_step(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 5)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (step * power * 5 >= range) return step * power;
  }
  return 10 * power;
}

/// Scales and frame of a line chart.
struct Frame {
  static constexpr double kWidth = 720, kHeight = 400;
  static constexpr double kLeft = 58, kRight = 560, kTop = 64, kBottom = 350;
  double x_least = std::numeric_limits<double>::max();
  double x_most = 0;
  double y_most = 0;

  double x(double value) const {
    if (x_most <= x_least) return (kLeft + kRight) / 2;
    return kLeft + (kRight - kLeft) * std::log(value / x_least) / std::log(x_most / x_least);
  }
  double y(double value) const { return kBottom - (kBottom - kTop) * value / y_most; }
};

/// The ranges of all series; a little room above the highest.
Frame frame_of(const LineChart& chart) {
  Frame frame;
  for (const Series& series : chart.series) {
    for (const double x : series.x) {
      frame.x_least = std::min(frame.x_least, x);
      frame.x_most = std::max(frame.x_most, x);
    }
    for (const double y : series.y) frame.y_most = std::max(frame.y_most, y);
  }
  frame.y_most = frame.y_most > 0 ? frame.y_most * 1.04 : 1;
  return frame;
}

/// Lines and numbers of y, numbers of x, and the names of both.
std::string axes(const LineChart& chart, const Frame& frame) {
  std::string text;
  const double step = round_step(frame.y_most);
  for (double y = 0; y <= frame.y_most; y += step) {
    text += fmt::format("<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                        Frame::kLeft, Frame::kRight, frame.y(y), frame.y(y));
    text += label({Frame::kLeft - 6, frame.y(y) + 4}, fmt::format("{:.4g}", y), "end", "faint");
  }
  // Each x has its tick: they are few, and powers of two.
  std::vector<double> ticks;
  for (const Series& series : chart.series) {
    ticks.insert(ticks.end(), series.x.begin(), series.x.end());
  }
  std::sort(ticks.begin(), ticks.end());
  ticks.erase(std::unique(ticks.begin(), ticks.end()), ticks.end());
  for (const double x : ticks) {
    text += label({frame.x(x), Frame::kBottom + 18}, fmt::format("{:.6g}", x), "middle", "faint");
  }
  if (chart.ratio && frame.y_most >= 1) {
    text += fmt::format("<line class=\"one\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                        Frame::kLeft, Frame::kRight, frame.y(1), frame.y(1));
  }
  text += label({(Frame::kLeft + Frame::kRight) / 2, Frame::kBottom + 38}, chart.x_name, "middle");
  return text + label({Frame::kLeft, Frame::kTop - 8}, chart.y_name, "start", "faint");
}

/// Names beside the ends of lines, pushed apart so that they can be read.
std::string names(const LineChart& chart, const Frame& frame) {
  constexpr double kLine = 15;
  std::vector<std::pair<double, std::size_t>> ends;
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    if (!chart.series[s].y.empty()) ends.emplace_back(frame.y(chart.series[s].y.back()), s);
  }
  std::sort(ends.begin(), ends.end());
  for (std::size_t i = 1; i < ends.size(); ++i) {
    ends[i].first = std::max(ends[i].first, ends[i - 1].first + kLine);
  }
  // Those that would stand below the chart move up.
  for (std::size_t i = ends.size(); i-- > 0;) {
    const double lowest = Frame::kBottom - kLine * static_cast<double>(ends.size() - 1 - i);
    ends[i].first = std::min(ends[i].first, lowest);
  }
  std::string text;
  for (const auto& [y, s] : ends) {
    const Series& series = chart.series[s];
    text += label({Frame::kRight + 14, y + 4}, series.name, "start",
                  fmt::format("c{}", s % kLight.size()));
  }
  return text;
}

}  // namespace

std::string to_svg(const LineChart& chart) {
  const Frame frame = frame_of(chart);
  std::string text = head(Frame::kWidth, Frame::kHeight, chart.title, chart.subtitle);
  text += axes(chart, frame);
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    const Series& series = chart.series[s];
    const std::size_t colour = s % kLight.size();
    std::string path;
    std::string marks;
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      const double x = frame.x(series.x[i]);
      const double y = frame.y(series.y[i]);
      path += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L", x, y);
      marks += fmt::format(
          "<circle class=\"c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>{}: {:.4g}</title>"
          "</circle>\n",
          colour, x, y, escaped(series.name), series.y[i]);
    }
    text += fmt::format("<path class=\"l{}\" d=\"{}\"/>\n{}", colour, path, marks);
  }
  return text + names(chart, frame) + "</svg>\n";
}

std::string to_svg(const MapChart& chart) {
  constexpr double kCellWide = 108, kCellHigh = 50, kLeft = 92, kTop = 62;
  const double width = kLeft + kCellWide * static_cast<double>(chart.columns.size()) + 14;
  const double height = kTop + kCellHigh * static_cast<double>(chart.rows.size()) + 52;
  std::string text = head(std::max(width, 560.0), height, chart.title, chart.subtitle);
  std::map<std::string, std::size_t> colours;
  for (std::size_t r = 0; r < chart.rows.size(); ++r) {
    const double y = kTop + kCellHigh * static_cast<double>(r);
    text += label({kLeft - 8, y + kCellHigh / 2 + 4}, chart.rows[r], "end", "faint");
    for (std::size_t c = 0; c < chart.columns.size(); ++c) {
      const MapChart::Cell& cell = chart.cells[r][c];
      if (cell.kind.empty()) continue;
      const double x = kLeft + kCellWide * static_cast<double>(c);
      const std::size_t colour =
          colours.try_emplace(cell.kind, colours.size()).first->second % kLight.size();
      text += fmt::format(
          "<rect class=\"c{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"3\"/>\n", colour,
          x + 1, y + 1, kCellWide - 2, kCellHigh - 2);
      const std::size_t cut = cell.text.find('\n');
      const double middle = x + kCellWide / 2;
      text += label({middle, y + 22}, cell.text.substr(0, cut), "middle", "on");
      if (cut != std::string::npos) {
        text += label({middle, y + 38}, cell.text.substr(cut + 1), "middle", "on");
      }
    }
  }
  const double bottom = kTop + kCellHigh * static_cast<double>(chart.rows.size());
  for (std::size_t c = 0; c < chart.columns.size(); ++c) {
    const double x = kLeft + kCellWide * (static_cast<double>(c) + 0.5);
    text += label({x, bottom + 18}, chart.columns[c], "middle", "faint");
  }
  text += label({kLeft, bottom + 40}, chart.x_name);
  return text + label({kLeft - 8, kTop - 6}, chart.y_name, "end") + "</svg>\n";
}

}  // namespace armillary::sweep
