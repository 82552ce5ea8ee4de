// Charts are text with numbers in it. Colours are classes of one style sheet, which has a second
// set for dark pages: `f3` fills, `s3` strokes; `on` is the text on a cell of any colour.
#include "armillary/sweep/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <sstream>

namespace armillary::sweep {
namespace {

/// A colour on light pages and on dark ones. The second to the seventh follow Okabe and Ito, darker
/// where they would be faint on white.
struct Colour {
  const char* light;
  const char* dark;
};
constexpr std::array<Colour, kLooks> kColours{{{"#5b6168", "#a9b0b8"},
                                               {"#0072b2", "#56a8e0"},
                                               {"#d55e00", "#ff8a3d"},
                                               {"#00785a", "#2fc79a"},
                                               {"#b0528a", "#e08fc0"},
                                               {"#2a8fbd", "#8fd0f2"},
                                               {"#9a6f00", "#e6b422"},
                                               {"#5e3c99", "#b39ddb"},
                                               {"#a50026", "#ff6f7d"},
                                               {"#1c1e21", "#f2f3f5"},
                                               {"#6b6b00", "#c9cc4a"}}};

/// The shape of the marks of a look, around 0, about 8 pixels wide.
constexpr std::array<const char*, 7> kShapes{"M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
                                             "M-3.6-3.6h7.2v7.2h-7.2z",
                                             "M0-4.6L4.5 3.4H-4.5z",
                                             "M0-5L5 0L0 5L-5 0z",
                                             "M0 4.6L4.5-3.4H-4.5z",
                                             "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
                                             "M0-5L1.5-1.6L5-1.5L2.3 .9L3.2 4.4L0 2.4L-3.2 4.4"
                                             "L-2.3 .9L-5-1.5L-1.5-1.6z"};

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
      case '"':
        text += "&quot;";
        break;
      default:
        text += c;
    }
  }
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::stringstream parts(text);
  for (std::string line; std::getline(parts, line);) lines.push_back(line);
  return lines;
}

/// Lines below a title: one that is wider than a chart is cut at a comma or blank.
std::vector<std::string> titles_of(const std::string& text) {
  constexpr std::size_t kMostLetters = 112;
  std::vector<std::string> lines;
  for (std::string line : lines_of(text)) {
    while (line.size() > kMostLetters) {
      std::size_t cut = line.find_last_of(", ", kMostLetters - 1);
      if (cut == std::string::npos || cut == 0) cut = kMostLetters - 1;
      lines.push_back(line.substr(0, cut + 1));
      line = line.substr(cut + 1);
    }
    lines.push_back(line);
  }
  return lines;
}

std::string style() {
  std::string text =
      "text{font:12px system-ui,'DejaVu Sans',sans-serif;fill:#1c1e21}.faint{fill:#5b6168}"
      ".grid{stroke:#dfe1e4}.axis{stroke:#8a9098}.one{stroke:#5b6168;stroke-dasharray:5 4}"
      ".lead{stroke:#b4b9bf}.title{font-size:16px;font-weight:600}.big{font-size:13px;"
      "font-weight:600}.small{font-size:11px}.page{fill:#fff}.line{fill:none;stroke-width:2}"
      ".mark{stroke:#fff;stroke-width:1}.on{fill:#fff}";
  std::string dark =
      "text{fill:#e6e7e9}.faint{fill:#a9b0b8}.grid{stroke:#33373d}.axis{stroke:#7a8088}"
      ".one{stroke:#a9b0b8}.lead{stroke:#5b6168}.page{fill:#15171a}.mark{stroke:#15171a}"
      ".on{fill:#101214}";
  for (std::size_t i = 0; i < kColours.size(); ++i) {
    text += fmt::format(".f{0}{{fill:{1}}}.s{0}{{stroke:{1}}}", i, kColours[i].light);
    dark += fmt::format(".f{0}{{fill:{1}}}.s{0}{{stroke:{1}}}", i, kColours[i].dark);
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
  const std::string of = classes.empty() ? "" : fmt::format(" class=\"{}\"", classes);
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", at.x, at.y,
                     align, of, escaped(text));
}

std::string straight(const char* classes, const Spot& from, const Spot& to) {
  return fmt::format(
      "<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", classes,
      from.x, from.y, to.x, to.y);
}

/// The mark of a look at a spot; `title` is its tooltip.
std::string mark(int look, const Spot& at, const std::string& title) {
  const auto number = static_cast<std::size_t>(look);
  return fmt::format(
      "<path class=\"mark f{}\" transform=\"translate({:.1f} {:.1f})\" d=\"{}\"><title>{}</title>"
      "</path>\n",
      number % kColours.size(), at.x, at.y, kShapes[number % kShapes.size()], escaped(title));
}

/// Titles of a chart, and where its drawing begins.
struct Titles {
  std::string title;
  std::vector<std::string> below;
  double bottom() const { return 34 + 17 * static_cast<double>(below.size()); }
};

/// The opening tag, the style sheet and the titles.
std::string head(double width, double height, const Titles& titles) {
  std::string text =
      fmt::format(
          "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
          "height=\"{1}\" role=\"img\" aria-label=\"{2}\">\n",
          width, height, escaped(titles.title)) +
      style() + fmt::format("<rect class=\"page\" width=\"{}\" height=\"{}\"/>\n", width, height) +
      label({16, 26}, titles.title, "start", "title");
  double y = 45;
  for (const std::string& line : titles.below) {
    text += label({16, y}, line, "start", "faint");
    y += 17;
  }
  return text;
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
  static constexpr double kWidth = 760, kLeft = 60, kRight = 580, kDrawn = 300;
  double top = 0;
  double x_least = std::numeric_limits<double>::max();
  double x_most = 0;
  double y_least = 0;  ///< 0 unless y is logarithmic.
  double y_most = 0;
  std::vector<double> xs = {};  ///< All x, ascending.

  double bottom() const { return top + kDrawn; }
  double x(double value) const {
    if (x_most <= x_least) return (kLeft + kRight) / 2;
    return kLeft + 14 +
           (kRight - kLeft - 28) * std::log(value / x_least) / std::log(x_most / x_least);
  }
  double y(double value) const {
    const double share =
        y_least > 0 ? std::log(value / y_least) / std::log(y_most / y_least) : value / y_most;
    return bottom() - kDrawn * share;
  }
  Spot spot(double x_value, double y_value) const { return {x(x_value), y(y_value)}; }
};

/// The ranges of all series; a little room above the highest, and below the lowest on a
/// logarithmic axis.
Frame frame_of(const LineChart& chart, double top) {
  Frame frame{.top = top};
  double least = std::numeric_limits<double>::max();
  for (const Series& series : chart.series) {
    frame.xs.insert(frame.xs.end(), series.x.begin(), series.x.end());
    for (const double y : series.y) {
      frame.y_most = std::max(frame.y_most, y);
      least = std::min(least, y);
    }
  }
  std::sort(frame.xs.begin(), frame.xs.end());
  frame.xs.erase(std::unique(frame.xs.begin(), frame.xs.end()), frame.xs.end());
  if (!frame.xs.empty()) {
    frame.x_least = frame.xs.front();
    frame.x_most = frame.xs.back();
  }
  if (!(frame.y_most > 0)) frame.y_most = 1;
  constexpr double kFarApart = 5;
  if (chart.ratio && least > 0 && frame.y_most / least > kFarApart) {
    frame.y_least = std::min(least, 1.0) / 1.1;
    frame.y_most = std::max(frame.y_most, 1.0) * 1.1;
  } else {
    frame.y_most *= 1.06;
  }
  return frame;
}

/// Values of y with a line: 1, 2, 5, 10 .. on a logarithmic axis.
std::vector<double> y_ticks(const Frame& frame) {
  std::vector<double> ticks;
  if (frame.y_least > 0) {
    for (int power = -6; power <= 6; ++power) {
      for (const double digit : {1.0, 2.0, 5.0}) ticks.push_back(digit * std::pow(10, power));
    }
    std::erase_if(ticks, [&](double y) { return y < frame.y_least || y > frame.y_most; });
    return ticks;
  }
  const double step = round_step(frame.y_most);
  for (int i = 0; i * step <= frame.y_most; ++i) ticks.push_back(i * step);
  return ticks;
}

/// Lines and numbers of y, numbers of x, and the names of both.
std::string axes(const LineChart& chart, const Frame& frame) {
  std::string text;
  for (const double y : y_ticks(frame)) {
    text += straight("grid", {Frame::kLeft, frame.y(y)}, {Frame::kRight, frame.y(y)});
    text += label({Frame::kLeft - 8, frame.y(y) + 4}, fmt::format("{:.4g}", y), "end", "faint");
  }
  const double bottom = frame.bottom();
  text += straight("axis", {Frame::kLeft, bottom}, {Frame::kRight, bottom});
  // Each x has its tick: they are few, and powers of two.
  for (std::size_t i = 0; i < frame.xs.size(); ++i) {
    const double x = frame.x(frame.xs[i]);
    text += straight("axis", {x, bottom}, {x, bottom + 4});
    text += label({x, bottom + 18}, fmt::format("{:.6g}", frame.xs[i]), "middle", "faint");
    if (i < chart.ticks.size()) {
      text += label({x, bottom + 33}, chart.ticks[i], "middle", "faint small");
    }
  }
  const double y_one = frame.y(1);
  if (chart.ratio && y_one >= frame.top && y_one <= bottom) {
    text += straight("one", {Frame::kLeft, y_one}, {Frame::kRight, y_one});
  }
  text += label({(Frame::kLeft + Frame::kRight) / 2, bottom + (chart.ticks.empty() ? 38 : 52)},
                chart.x_name, "middle");
  const std::string logarithmic = frame.y_least > 0 ? ", logarithmic" : "";
  return text + label({16, frame.top - 10}, chart.y_name + logarithmic);
}

/// A name beside the end of its line.
struct EndLabel {
  double y = 0;  ///< Height of the name; the line ends at `end`.
  std::size_t series = 0;
  Spot end;
};

/// Names, pushed apart so that they can be read: first down, then up from the lower edge.
std::string names(const LineChart& chart, const Frame& frame) {
  constexpr double kLine = 17;
  std::vector<EndLabel> ends;
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    const Series& series = chart.series[s];
    if (series.y.empty()) continue;
    const Spot end = frame.spot(series.x.back(), series.y.back());
    ends.push_back({end.y, s, end});
  }
  std::stable_sort(ends.begin(), ends.end(),
                   [](const EndLabel& a, const EndLabel& b) { return a.y < b.y; });
  for (std::size_t i = 1; i < ends.size(); ++i) {
    ends[i].y = std::max(ends[i].y, ends[i - 1].y + kLine);
  }
  for (std::size_t i = ends.size(); i-- > 0;) {
    const double lowest = frame.bottom() - kLine * static_cast<double>(ends.size() - 1 - i);
    ends[i].y = std::min(ends[i].y, lowest);
  }
  std::string text;
  for (const EndLabel& one : ends) {
    const Series& series = chart.series[one.series];
    const Spot place{Frame::kRight + 24, one.y};
    text += straight("lead", {one.end.x + 6, one.end.y}, {place.x - 8, place.y});
    text += mark(series.look, place, series.name);
    text += label({place.x + 10, place.y + 4}, series.name);
  }
  return text;
}

/// A line, and its marks with the values.
std::string drawn(const Series& series, const Frame& frame) {
  const auto colour = static_cast<std::size_t>(series.look) % kColours.size();
  std::string path;
  std::string marks;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    const Spot at = frame.spot(series.x[i], series.y[i]);
    path += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L", at.x, at.y);
    const std::string name = i < series.details.size() ? series.details[i] : series.name;
    marks += mark(series.look, at, fmt::format("{}: {:.4g}", name, series.y[i]));
  }
  return fmt::format("<path class=\"line s{}\" d=\"{}\"/>\n{}", colour, path, marks);
}

}  // namespace

std::string to_svg(const LineChart& chart) {
  const Titles titles{chart.title, titles_of(chart.subtitle)};
  const Frame frame = frame_of(chart, titles.bottom() + 34);
  const double height = frame.bottom() + (chart.ticks.empty() ? 54 : 68);
  std::string text = head(Frame::kWidth, height, titles) + axes(chart, frame);
  text += names(chart, frame);
  for (const Series& series : chart.series) text += drawn(series, frame);
  return text + "</svg>\n";
}

std::string to_svg(const MapChart& chart) {
  constexpr double kCellWide = 136, kCellHigh = 66, kLeft = 84;
  const Titles titles{chart.title, titles_of(chart.subtitle)};
  const double top = titles.bottom() + 34;
  const double bottom = top + kCellHigh * static_cast<double>(chart.rows.size());
  const double width = kLeft + kCellWide * static_cast<double>(chart.columns.size()) + 16;
  std::string text = head(std::max(width, 640.0), bottom + 54, titles);
  for (std::size_t r = 0; r < chart.rows.size(); ++r) {
    const double y = top + kCellHigh * static_cast<double>(r);
    text += label({kLeft - 10, y + kCellHigh / 2 + 4}, chart.rows[r], "end", "faint");
    for (std::size_t c = 0; c < chart.columns.size(); ++c) {
      const MapChart::Cell& cell = chart.cells[r][c];
      if (cell.kind.empty()) continue;
      const double x = kLeft + kCellWide * static_cast<double>(c);
      text += fmt::format(
          "<rect class=\"f{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"4\"/>\n",
          static_cast<std::size_t>(cell.look) % kColours.size(), x + 1.5, y + 1.5, kCellWide - 3,
          kCellHigh - 3);
      // The lines of the cell, around its middle.
      const std::vector<std::string> lines = lines_of(cell.text);
      double at = y + kCellHigh / 2 + 5 - 8.5 * static_cast<double>(lines.size() - 1);
      for (std::size_t i = 0; i < lines.size(); ++i, at += 17) {
        text += label({x + kCellWide / 2, at}, lines[i], "middle", i == 0 ? "on big" : "on small");
      }
    }
  }
  for (std::size_t c = 0; c < chart.columns.size(); ++c) {
    const double x = kLeft + kCellWide * (static_cast<double>(c) + 0.5);
    text += label({x, bottom + 18}, chart.columns[c], "middle", "faint");
  }
  const double middle = kLeft + kCellWide * static_cast<double>(chart.columns.size()) / 2;
  text += label({middle, bottom + 40}, chart.x_name, "middle");
  return text + label({16, top - 10}, chart.y_name) + "</svg>\n";
}

}  // namespace armillary::sweep
