// Points, rows, CSV and charts of small sweeps. Times are those of sim/; here it is held that each
// row is there once, that rows are in order, and that charts show what they say.
#include "armillary/sweep/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "armillary/core/testing/expect_error.h"
#include "armillary/sim/testing/clusters.h"
#include "armillary/sweep/plots.h"

namespace armillary::sweep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

plan::Problem problem_at(const Point& point) {
  return {.world = point.world,
          .heads = point.heads,
          .kv_heads = point.heads,
          .dtype = plan::Dtype::Bf16,
          .mask = plan::parse_mask("causal", {point.seq, point.seq}),
          .layout = plan::parse_layout("zigzag")};
}

Question question_of(const Ranges& ranges, const std::vector<std::string>& strategies) {
  return {.points = points(ranges),
          .problem = problem_at,
          .cluster = sim::testing::two_level(1, 4),
          .passes = {plan::Pass::Forward},
          .strategies = strategies};
}

const Ranges kSmall{
    .worlds = {2, 4, 8}, .seqs = {1024, 4096}, .heads = {4}, .bandwidths = {1}, .weak = false};

TEST(Sweep, CombinesRanges) {
  EXPECT_EQ(points(kSmall).size(), 6U);
  EXPECT_EQ(points(kSmall)[0], (Point{.world = 2, .seq = 1024, .heads = 4, .bandwidth = 1}));
  EXPECT_EQ(points(kSmall)[1].world, 4);
  Ranges weak = kSmall;
  weak.weak = true;
  EXPECT_EQ(points(weak)[2].seq, 4096) << "4 times the ranks of the first, 4 times the tokens";
  weak.heads.assign(2000, 4);
  EXPECT_EQ(error_of([&] { points(weak); }),
            "sweep: the ranges have 12000 points; at most 10000 are allowed");
}

TEST(Sweep, HasARowForEachStrategyAndPoint) {
  const std::vector<Row> rows = sweep(question_of(kSmall, {"ring", "usp", "tokenring"}));
  std::set<Point> seen;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    seen.insert(rows[i].point);
    EXPECT_GT(rows[i].flops_per_rank, 0);
    EXPECT_LE(rows[i].flops_per_rank, 1.000001e12) << "the rate of the device";
    if (i > 0 && rows[i].point == rows[i - 1].point) {
      EXPECT_GE(rows[i].times.total_s(), rows[i - 1].times.total_s());
    }
  }
  EXPECT_EQ(seen.size(), 6U);
  Ranges two = kSmall;
  two.worlds = {2};
  EXPECT_EQ(error_of([&] { sweep(question_of(two, {"usp:u=4"})); }),
            "sweep: no strategy of --strategies solves a problem of the ranges");
  EXPECT_THAT(error_of([] { sweep(question_of(kSmall, {"rink"})); }), HasSubstr("nearest"));
}

TEST(Sweep, FasterLinksTakeLessTime) {
  Ranges ranges = kSmall;
  ranges.worlds = {8};
  ranges.seqs = {4096};
  ranges.bandwidths = {0.5, 1};
  const std::vector<Row> rows = sweep(question_of(ranges, {"ring"}));
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_GT(rows[0].times.total_s(), rows[1].times.total_s());
}

TEST(Sweep, WritesCsv) {
  const Question question = question_of(kSmall, {"ring"});
  const std::string csv = to_csv(sweep(question), question.passes);
  EXPECT_THAT(csv, StartsWith("world,seq,heads,bandwidth,strategy,total_s,forward_s,"
                              "forward_exposed_s,forward_sent_bytes,memory_bytes,fits,"
                              "flops_per_rank\n2,1024,4,1,\"ring\","));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 7);
}

TEST(Plots, DrawsEachKind) {
  Ranges line = kSmall;
  line.seqs = {1024};
  const auto plotted_over = [](const Ranges& ranges) {
    return Plotted{.rows = sweep(question_of(ranges, {"ring", "usp"})),
                   .subtitle = "a < b & c\nsecond line"};
  };
  const Plotted plotted = plotted_over(line);
  for (const Plot plot : {Plot::Speedup, Plot::Winners, Plot::Scaling}) {
    const std::string svg = to_svg(plot == Plot::Winners ? plotted_over(kSmall) : plotted, plot);
    EXPECT_THAT(svg, AllOf(StartsWith("<svg xmlns="), HasSubstr("a &lt; b &amp; c"),
                           HasSubstr(">second line<"), HasSubstr(">usp<"), Not(HasSubstr("nan")),
                           Not(HasSubstr("inf"))));
    EXPECT_EQ(parse_plot(to_string(plot)), plot);
  }
  EXPECT_THAT(to_svg(plotted, Plot::Speedup), HasSubstr("ring, 2 ranks: 1<"));
  EXPECT_THAT(error_of([] { parse_plot("winner"); }), HasSubstr("nearest is 'winners'"));
}

// usp with u = 1 is ring, and auto is one of the others: none of them is a second line or cell.
TEST(Plots, ShowAPlanUnderOneName) {
  Ranges ranges = kSmall;
  ranges.seqs = {4096};
  const Plotted all{.rows = sweep(question_of(ranges, {})), .subtitle = ""};
  bool has_automatic = false;
  for (const Row& row : all.rows) has_automatic |= row.times.strategy.name == "auto";
  ASSERT_TRUE(has_automatic);
  EXPECT_THAT(to_svg(all, Plot::Scaling), Not(HasSubstr(">auto:traffic<")));
  Plotted twice{.rows = sweep(question_of(ranges, {"ring"})), .subtitle = ""};
  const std::vector<Row> rings = twice.rows;
  for (Row row : rings) {
    row.times.strategy = plan::parse_strategy("usp:u=1");
    twice.rows.insert(std::find_if(twice.rows.begin(), twice.rows.end(),
                                   [&](const Row& other) { return other.point == row.point; }),
                      row);
  }
  const std::string svg = to_svg(twice, Plot::Scaling);
  EXPECT_THAT(svg, AllOf(HasSubstr(">ring<"), Not(HasSubstr(">usp<"))));
}

TEST(Plots, SayTokensWhereTheyGrowWithRanks) {
  Ranges ranges = kSmall;
  ranges.seqs = {4096};
  EXPECT_THAT(to_svg({.rows = sweep(question_of(ranges, {"ring"})), .subtitle = ""}, Plot::Scaling),
              HasSubstr("Strong scaling"));
  ranges.weak = true;
  const std::string svg =
      to_svg({.rows = sweep(question_of(ranges, {"ring"})), .subtitle = ""}, Plot::Scaling);
  EXPECT_THAT(
      svg, AllOf(HasSubstr("Weak scaling"), HasSubstr(">4K tokens<"), HasSubstr(">16K tokens<")));
}

// Values that are far apart have a logarithmic axis, which must not cut any of them off.
TEST(Chart, DrawsRatiosThatAreFarApart) {
  const std::string svg =
      to_svg(LineChart{.title = "t",
                       .series = {{.name = "slow", .look = 1, .x = {1, 2}, .y = {0.02, 0.05}},
                                  {.name = "fast", .look = 2, .x = {1, 2}, .y = {1, 8}}},
                       .ratio = true});
  EXPECT_THAT(svg, AllOf(HasSubstr("logarithmic"), HasSubstr(">0.05<"), HasSubstr(">5<")));
  for (std::size_t at = svg.find("translate("); at != std::string::npos;
       at = svg.find("translate(", at + 1)) {
    const double y = std::stod(svg.substr(svg.find(' ', at)));
    EXPECT_GE(y, 30);
    EXPECT_LE(y, 400);
  }
}

TEST(Plots, RefusesRowsWithoutWhatItCompares) {
  Ranges line = kSmall;
  line.seqs = {1024};
  const Plotted no_ring{.rows = sweep(question_of(line, {"usp"})), .subtitle = ""};
  EXPECT_THAT(error_of([&] { to_svg(no_ring, Plot::Speedup); }),
              StartsWith("sweep: no row of ring that fits with 4 ranks"));
  const Plotted one_range{.rows = sweep(question_of(line, {"ring"})), .subtitle = ""};
  EXPECT_EQ(error_of([&] { to_svg(one_range, Plot::Winners); }),
            "sweep: --world given with several values; a map of the fastest strategies requires "
            "two of --world, --seq, --heads and --bandwidth");
}

// A chart that showed the first value of a range alone would look like one of all values.
TEST(Plots, RefusesMoreRangesThanAxes) {
  Ranges ranges = kSmall;
  ranges.bandwidths = {0.5, 2};
  const Plotted three{.rows = sweep(question_of(ranges, {"ring"})), .subtitle = ""};
  EXPECT_EQ(error_of([&] { to_svg(three, Plot::Winners); }),
            "sweep: several values of each of --world, --seq, --bandwidth given; the chart winners "
            "has two axes: one value of all others is required");
  ranges.seqs = {1024};
  const Plotted two{.rows = sweep(question_of(ranges, {"ring"})), .subtitle = ""};
  for (const Plot plot : {Plot::Speedup, Plot::Scaling}) {
    EXPECT_THAT(error_of([&] { to_svg(two, plot); }),
                StartsWith("sweep: 2 values of --bandwidth given; the chart " +
                           std::string(to_string(plot)) + " has one axis, --world"));
  }
  EXPECT_THAT(to_svg(two, Plot::Winners), HasSubstr("bandwidth of all links"));
  ranges.weak = true;
  const Plotted weak{.rows = sweep(question_of(ranges, {"ring"})), .subtitle = ""};
  EXPECT_THAT(to_svg(weak, Plot::Winners), HasSubstr("bandwidth of all links"));
  // The same is found without simulating.
  EXPECT_NO_THROW(check_ranges(points(ranges), Plot::Winners));
  EXPECT_THROW(check_ranges(points(ranges), Plot::Scaling), InvalidArgument);
  EXPECT_THROW(check_ranges(points(kSmall), Plot::Speedup), InvalidArgument);
}

// Lengths that grow with the ranks would fill a diagonal of the map.
TEST(Plots, AMapOfWeakScalingIsFull) {
  Ranges ranges = kSmall;
  ranges.weak = true;
  const Plotted weak{.rows = sweep(question_of(ranges, {"ring"})), .subtitle = ""};
  const std::string svg = to_svg(weak, Plot::Winners);
  EXPECT_THAT(svg, HasSubstr("tokens of a rank"));
  std::size_t cells = 0;
  const std::string cell = "rx=\"4\"";
  for (std::size_t at = svg.find(cell); at != std::string::npos; at = svg.find(cell, at + 1)) {
    ++cells;
  }
  EXPECT_EQ(cells, ranges.worlds.size() * ranges.seqs.size());
}

}  // namespace
}  // namespace armillary::sweep
