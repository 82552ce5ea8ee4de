// runs_test.cpp: runs of positions: counts of visible pairs equal enumeration for all small runs
// and closed forms for trillions of tokens; pieces join where they were cut.
#include "armillary/plan/runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>

#include "armillary/core/error.h"
#include "tests/random_runs.h"

namespace armillary::plan {
namespace {

using testing::ElementsAre;
using testing::ThrowsMessage;

std::int64_t pairs_by_enumeration(const Run& q_run, const Run& k_run, Distance distance) {
  std::int64_t pairs = 0;
  for (const std::int64_t q : positions({q_run})) {
    for (const std::int64_t k : positions({k_run})) {
      pairs += distance.lo <= k - q && k - q <= distance.hi;
    }
  }
  return pairs;
}

TEST(Runs, PositionsAreInMemoryOrder) {
  EXPECT_THAT(positions({{.begin = 3, .count = 4}}), ElementsAre(3, 4, 5, 6));
  EXPECT_THAT(positions({{.begin = 1, .count = 3, .step = 4}}), ElementsAre(1, 5, 9));
  EXPECT_THAT(
      positions({{.begin = 4, .count = 2, .step = 8, .width = 2}, {.begin = 0, .count = 1}}),
      ElementsAre(4, 5, 12, 13, 0));
  EXPECT_THAT(positions({}), ElementsAre());
}

RC_GTEST_PROP(Runs, CountsMatchPositions, ()) {
  const Run run = random_run();
  const auto all = positions({run});
  RC_ASSERT(static_cast<std::int64_t>(all.size()) == run.tokens());
  RC_ASSERT(all.back() == run.last());
  RC_ASSERT(run.contiguous() == (run.last() - run.begin + 1 == run.tokens()));
}

RC_GTEST_PROP(CountPairs, EqualsEnumeration, ()) {
  const Run q = random_run();
  Run k = random_run();
  // Runs of one layout have one step; any two runs rarely do.
  if (*rc::gen::arbitrary<bool>() && k.width <= q.step) k.step = q.step;
  RC_LOG() << "q " << describe(q) << ", k " << describe(k);
  for (std::int64_t lo = -60; lo <= 60; lo += 3) {
    for (const Distance distance : {Distance{lo, lo}, Distance{lo, lo + 7}, Distance{.hi = lo},
                                    Distance{.lo = lo}, Distance{lo, lo - 1}}) {
      RC_LOG() << "distance " << distance.lo << ".." << distance.hi;
      RC_ASSERT(count_pairs(q, k, distance) == pairs_by_enumeration(q, k, distance));
    }
  }
}

// Every shape near the origin, so that no shape is left to chance.
TEST(CountPairs, EqualsEnumerationForAllSmallRuns) {
  std::vector<plan::Run> runs;
  for (std::int64_t width = 1; width <= 3; ++width) {
    for (std::int64_t step = width; step <= 4; ++step) {
      for (std::int64_t count = 1; count <= 3; ++count) runs.push_back({2, count, step, width});
    }
  }
  for (const plan::Run& q : runs) {
    for (const plan::Run& k : runs) {
      for (std::int64_t lo = -12; lo <= 12; ++lo) {
        for (std::int64_t hi = lo; hi <= 12; hi += 2) {
          ASSERT_EQ(count_pairs(q, k, {lo, hi}), pairs_by_enumeration(q, k, {lo, hi}))
              << "q " << describe(q) << ", k " << describe(k) << ", " << lo << ".." << hi;
        }
      }
    }
  }
}

TEST(CountPairs, IsExactForTrillionsOfTokens) {
  const std::int64_t n = std::int64_t{1} << 40;
  const plan::Run all = run_of({0, n});
  EXPECT_EQ(count_pairs(all, all, {-3, 3}), 7 * n - 12);
  EXPECT_EQ(count_pairs(all, all, {.lo = n - 2}), 3);

  // Pairs of stripes, two of every four tokens, against the same stripes moved by one.
  const plan::Run stripes{.begin = 0, .count = n / 4, .step = 4, .width = 2};
  const plan::Run moved{.begin = 1, .count = n / 4, .step = 4, .width = 2};
  EXPECT_EQ(count_pairs(stripes, all, {0, 0}), n / 2);
  EXPECT_EQ(count_pairs(stripes, moved, {0, 0}), n / 4);

  // Two steps: multiples of 4 that are multiples of 6, below 4 * 2^30.
  const std::int64_t count = std::int64_t{1} << 30;
  EXPECT_EQ(count_pairs({0, count, 6, 1}, {0, count, 4, 1}, {0, 0}), (4 * count + 11) / 12);
  EXPECT_EQ(count_pairs({0, count, 6, 1}, {0, count, 4, 1}, {}), count * count);
}

TEST(CountPairs, RefusesMorePairsThan63BitsHold) {
  const plan::Run all = run_of({0, std::int64_t{1} << 32});
  EXPECT_THAT(
      ([&] { count_pairs(all, all, {}); }),
      ThrowsMessage<InvalidArgument>("count_pairs: 4294967296 queries x 4294967296 keys see "
                                     "2^63 pairs or more; fewer are required"));
  EXPECT_EQ(count_pairs(all, run_of({0, (std::int64_t{1} << 31) - 1}), {}),
            ((std::int64_t{1} << 31) - 1) << 32);
}

RC_GTEST_PROP(Clip, KeepsWhatIsInside, ()) {
  const Runs runs = random_runs();
  const auto begin = *rc::gen::resize(100, rc::gen::inRange<std::int64_t>(-5, 70));
  const Interval range = {begin, begin + *rc::gen::resize(100, rc::gen::inRange(-3, 50))};
  std::vector<std::int64_t> inside;
  for (const std::int64_t position : positions(runs)) {
    if (range.begin <= position && position < range.end) inside.push_back(position);
  }
  const Runs clipped = clip(runs, range);
  RC_ASSERT(positions(clipped) == inside);
  RC_ASSERT(clipped.size() <= 3 * runs.size());
  for (const Run& run : clipped) {
    RC_ASSERT(run.count >= 1);
    RC_ASSERT(!run.contiguous() || (run.step == 1 && run.width == 1));
  }
}

RC_GTEST_PROP(Join, KeepsPositionsAndOrder, ()) {
  const Runs runs = random_runs();
  const auto cut = *rc::gen::resize(100, rc::gen::inRange<std::int64_t>(0, 60));
  Runs parts = clip(runs, {0, cut});
  for (const Run& run : clip(runs, {cut, 1000})) parts.push_back(run);
  const Runs joined = join(parts);
  RC_ASSERT(positions(joined) == positions(runs));
  RC_ASSERT(joined.size() <= parts.size());
  RC_ASSERT(join(joined) == joined);
}

TEST(Join, UndoesACutOfAContiguousOrStridedRun) {
  const plan::Run strided{.begin = 1, .count = 6, .step = 8, .width = 3};
  EXPECT_EQ(join({{3, 2}, {5, 4}, {9, 1}}), (Runs{{3, 7}}));
  for (std::int64_t cut = 10; cut <= 30; ++cut) {
    Runs parts = clip(strided, {0, cut});
    for (const plan::Run& run : clip(strided, {cut, 100})) parts.push_back(run);
    EXPECT_EQ(join(parts), Runs{strided}) << "cut at " << cut;
  }
}

TEST(Join, KeepsFarPiecesApart) {
  const Runs zigzag = {{0, 4}, {28, 4}};
  EXPECT_EQ(join(zigzag), zigzag);
  const Runs backwards = {{8, 2}, {4, 4}};
  EXPECT_EQ(join(backwards), backwards);
}

RC_GTEST_PROP(CountCommon, EqualsEnumeration, ()) {
  const Runs a = random_runs();
  const Runs b = random_runs();
  std::int64_t common = 0;
  for (const std::int64_t p : positions(a)) {
    for (const std::int64_t q : positions(b)) common += p == q;
  }
  RC_ASSERT(count_common(a, b) == common);
}

}  // namespace
}  // namespace armillary::plan
