// Points, rows and CSV of small sweeps. Times are those of sim/; here it is held that each row is
// there once, that rows are in order, and that the table has them.
#include "armillary/lab/sweep/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "armillary/core/testing/expect_error.h"
#include "armillary/predict/sim/testing/clusters.h"

namespace armillary::sweep {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

plan::Problem problem_at(const Point& point) {
  return {.world = point.world,
          .heads = point.heads,
          .kv_heads = point.heads,
          .dtype = plan::Dtype::Bf16,
          .mask = plan::parse_mask("causal", {point.seq, point.seq}),
          .layout = plan::parse_layout("zigzag")};
}

SweepQuestion question_of(const Ranges& ranges, const std::vector<std::string>& strategies) {
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
  const std::vector<SweepRow> rows = sweep(question_of(kSmall, {"ring", "usp", "tokenring"}));
  std::set<Point> points;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    points.insert(rows[i].point);
    EXPECT_GT(rows[i].flops_per_rank, 0);
    EXPECT_LE(rows[i].flops_per_rank, 1.000001e12) << "the rate of the device";
    if (i > 0 && rows[i].point == rows[i - 1].point) {
      EXPECT_GE(rows[i].times.total_s(), rows[i - 1].times.total_s());
    }
  }
  EXPECT_EQ(points.size(), 6U);
  Ranges two = kSmall;
  two.worlds = {2};
  EXPECT_EQ(error_of([&] { sweep(question_of(two, {"usp:u=4"})); }),
            "sweep: none of the strategies solves a problem of the ranges");
  EXPECT_THAT(error_of([] { sweep(question_of(kSmall, {"rink"})); }), HasSubstr("nearest"));
}

TEST(Sweep, FasterLinksTakeLessTime) {
  Ranges ranges = kSmall;
  ranges.worlds = {8};
  ranges.seqs = {4096};
  ranges.bandwidths = {0.5, 1};
  const std::vector<SweepRow> rows = sweep(question_of(ranges, {"ring"}));
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_GT(rows[0].times.total_s(), rows[1].times.total_s());
}

TEST(Sweep, WritesCsv) {
  const SweepQuestion question = question_of(kSmall, {"ring"});
  const std::string csv = to_csv(sweep(question), question.passes, {{"mask", "a \"b\", c"}});
  EXPECT_THAT(csv, StartsWith("world,seq,heads,bandwidth,strategy,total_s,forward_s,"
                              "forward_exposed_s,forward_sent_bytes,memory_bytes,fits,"
                              "flops_per_rank,kv_seq,kv_heads,mask\n2,1024,4,1,\"ring\","));
  EXPECT_THAT(csv, EndsWith(",4096,4,\"a \"\"b\"\", c\"\n"));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 7);
}

}  // namespace
}  // namespace armillary::sweep
