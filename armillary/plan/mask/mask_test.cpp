// mask_test.cpp: masks as sets of bands: areas of blocks against a count of pairs, a million
// documents, and bands that overlap or lie outside.
#include "armillary/plan/mask/mask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/testing/expect_error.h"
#include "tests/random_runs.h"

namespace armillary::plan {
namespace {

bool holds(const Band& band, std::int64_t q, std::int64_t k) {
  return band.q.begin <= q && q < band.q.end && band.k.begin <= k && k < band.k.end &&
         band.lo <= k - q && k - q <= band.hi;
}

Band random_band(std::int64_t q_len, std::int64_t kv_len) {
  const auto between = [](std::int64_t a, std::int64_t b) {
    return *rc::gen::resize(100, rc::gen::inRange(a, b + 1));
  };
  const std::int64_t q = between(0, q_len);
  const std::int64_t k = between(0, kv_len);
  Band band{.q = {q, between(q, q_len)}, .k = {k, between(k, kv_len)}};
  if (between(0, 2) > 0) band.lo = between(-kv_len, kv_len);
  if (between(0, 2) > 0) band.hi = between(-kv_len, kv_len);
  return band;
}

struct RandomMask {
  Mask mask;
  std::vector<Band> bands;
};

/// Bands as they come, less those that overlap an earlier one.
RandomMask random_mask() {
  const auto q_len = *rc::gen::resize(100, rc::gen::inRange<std::int64_t>(0, 60));
  const auto kv_len = *rc::gen::resize(100, rc::gen::inRange<std::int64_t>(0, 60));
  std::vector<Band> bands;
  for (int i = *rc::gen::resize(100, rc::gen::inRange(0, 12)); i > 0; --i) {
    const Band band = random_band(q_len, kv_len);
    const bool apart = std::all_of(bands.begin(), bands.end(), [&](const Band& other) {
      return intersect(other, band).empty();
    });
    if (apart) bands.push_back(band);
  }
  return {Mask(q_len, kv_len, bands), bands};
}

bool any_holds(const std::vector<Band>& bands, std::int64_t q, std::int64_t k) {
  return std::any_of(bands.begin(), bands.end(),
                     [&](const Band& band) { return holds(band, q, k); });
}

RC_GTEST_PROP(Mask, AreaAndEmptinessEqualEnumeration, ()) {
  const auto [mask, bands] = random_mask();
  const Runs q = clip(random_runs(), {0, mask.q_len()});
  const Runs k = clip(random_runs(), {0, mask.kv_len()});
  std::int64_t area = 0;
  for (const std::int64_t query : positions(q)) {
    for (const std::int64_t key : positions(k)) area += any_holds(bands, query, key);
  }
  RC_ASSERT(mask.area(q, k) == area);
  RC_ASSERT(mask.empty(q, k) == (area == 0));
}

RC_GTEST_PROP(Mask, ShowsTheGivenBands, ()) {
  const auto [mask, bands] = random_mask();
  std::int64_t area = 0;
  for (std::int64_t q = 0; q < mask.q_len(); ++q) {
    for (std::int64_t k = 0; k < mask.kv_len(); ++k) {
      RC_ASSERT(mask.visible(q, k) == any_holds(bands, q, k));
      area += any_holds(bands, q, k);
    }
  }
  RC_ASSERT(mask.area() == area);
  RC_ASSERT(Mask(mask.q_len(), mask.kv_len(), mask.bands()) == mask);
}

std::vector<Interval> intervals_of(const std::set<std::int64_t>& positions) {
  std::vector<Interval> intervals;
  for (const std::int64_t position : positions) {
    if (!intervals.empty() && intervals.back().end == position) {
      ++intervals.back().end;
    } else {
      intervals.push_back({position, position + 1});
    }
  }
  return intervals;
}

RC_GTEST_PROP(Mask, KeysAndQueriesOfEqualEnumeration, ()) {
  const auto [mask, bands] = random_mask();
  const auto begin = *rc::gen::resize(100, rc::gen::inRange<std::int64_t>(0, 60));
  const auto end = *rc::gen::resize(100, rc::gen::inRange<std::int64_t>(0, 60));
  std::set<std::int64_t> keys;
  std::set<std::int64_t> queries;
  for (std::int64_t q = 0; q < mask.q_len(); ++q) {
    for (std::int64_t k = 0; k < mask.kv_len(); ++k) {
      if (!any_holds(bands, q, k)) continue;
      if (begin <= q && q < end) keys.insert(k);
      if (begin <= k && k < end) queries.insert(q);
    }
  }
  RC_ASSERT(mask.keys_of({begin, end}) == intervals_of(keys));
  RC_ASSERT(mask.queries_of({begin, end}) == intervals_of(queries));
}

RC_GTEST_PROP(Mask, RefusesOverlapExactlyWhereThereIsOne, ()) {
  std::vector<Band> bands;
  for (int i = *rc::gen::resize(100, rc::gen::inRange(2, 6)); i > 0; --i) {
    bands.push_back(random_band(16, 16));
  }
  int most = 0;
  for (std::int64_t q = 0; q < 16; ++q) {
    for (std::int64_t k = 0; k < 16; ++k) {
      int times = 0;
      for (const Band& band : bands) times += holds(band, q, k);
      most = std::max(most, times);
    }
  }
  bool refused = false;
  try {
    Mask(16, 16, bands);
  } catch (const InvalidArgument&) {
    refused = true;
  }
  RC_ASSERT(refused == (most > 1));
}

RC_GTEST_PROP(Band, TightKeepsPairsAndTouchesAllSides, ()) {
  const Band band = random_band(12, 12);
  const Band tightened = tight(band);
  std::set<std::int64_t> queries;
  std::set<std::int64_t> keys;
  std::set<std::int64_t> distances;
  for (std::int64_t q = 0; q < 12; ++q) {
    for (std::int64_t k = 0; k < 12; ++k) {
      RC_ASSERT(holds(band, q, k) == holds(tightened, q, k));
      if (!holds(band, q, k)) continue;
      queries.insert(q);
      keys.insert(k);
      distances.insert(k - q);
    }
  }
  RC_ASSERT(tightened.empty() == queries.empty());
  if (tightened.empty()) return;
  RC_ASSERT(intervals_of(queries) == std::vector<Interval>{tightened.q});
  RC_ASSERT(intervals_of(keys) == std::vector<Interval>{tightened.k});
  RC_ASSERT(*distances.begin() == tightened.lo);
  RC_ASSERT(*distances.rbegin() == tightened.hi);
}

RC_GTEST_PROP(Mask, IntersectionShowsWhatBothShow, ()) {
  const RandomMask a = random_mask();
  std::vector<Band> bands;
  for (const Band& band : random_mask().bands) {
    // Bands of another mask, cut to the lengths of this one.
    const Interval q = intersect(band.q, {0, a.mask.q_len()});
    const Interval k = intersect(band.k, {0, a.mask.kv_len()});
    if (!q.empty() && !k.empty()) bands.push_back({q, k, band.lo, band.hi});
  }
  const Mask b(a.mask.q_len(), a.mask.kv_len(), bands);
  const Mask both = intersect(a.mask, b);
  RC_ASSERT(both == intersect(b, a.mask));
  for (std::int64_t q = 0; q < a.mask.q_len(); ++q) {
    for (std::int64_t k = 0; k < a.mask.kv_len(); ++k) {
      RC_ASSERT(both.visible(q, k) == (a.mask.visible(q, k) && b.visible(q, k)));
    }
  }
}

TEST(Mask, IntersectsTwoListsOfManyDocuments) {
  // 2^34 pairs of bands, of which 2^18 have a query in common.
  constexpr std::int64_t kDocuments = 1 << 17;
  const std::vector<std::int64_t> lengths(kDocuments, 8);
  std::vector<std::int64_t> others(kDocuments - 1, 8);
  others.insert(others.begin(), 4);
  others.push_back(4);
  const Lengths all{8 * kDocuments, 8 * kDocuments};
  const Mask both = intersect(documents_mask(all, lengths), documents_mask(all, others));
  EXPECT_EQ(both.bands().size(), 2 * kDocuments);
  EXPECT_EQ(both.area(), 2 * kDocuments * 10);
  expect_error("mask: 1048576 x 1048576 and 8 x 8 given; equal lengths are required", [&] {
    intersect(both, full_mask({8, 8}));
  });
}

TEST(Mask, FindsOneDocumentAmongAMillion) {
  const std::int64_t count = 1'000'000;
  const std::int64_t length = 1'000'003;
  const std::int64_t n = count * length;
  const Mask mask = documents_mask({n, n}, std::vector<std::int64_t>(count, length));
  EXPECT_EQ(mask.area(), count * (length * (length + 1) / 2));

  const std::int64_t begin = 777'777 * length;
  const Runs document = {run_of({begin, begin + length})};
  EXPECT_EQ(mask.area(document, document), length * (length + 1) / 2);
  EXPECT_EQ(mask.area({run_of({begin - 1, begin + 2})}, {run_of({begin - 2, begin + 2})}), 5);
  EXPECT_TRUE(mask.empty(document, {run_of({begin + length, n})}));
  // Every third token of the document, against the same tokens.
  const Runs strided = {{.begin = begin, .count = length / 3, .step = 3}};
  EXPECT_EQ(mask.area(strided, strided), length / 3 * (length / 3 + 1) / 2);
  EXPECT_EQ(mask.keys_of({begin - 1, begin + 5}),
            (std::vector<Interval>{{begin - length, begin + 5}}));
  EXPECT_EQ(mask.queries_of({begin + 5, begin + 6}),
            (std::vector<Interval>{{begin + 5, begin + length}}));
}

TEST(Mask, RefusesLengthsAndRangesOutside) {
  expect_error("mask: -1 queries and 4 keys given; lengths of 0 to 72057594037927936 are required",
               [] { Mask(-1, 4, {}); });
  expect_error("mask: band 0-5/0-8/.. given; ranges inside 0-4/0-8 are required", [] {
    Mask(4, 8, {{.q = {0, 5}, .k = {0, 8}}});
  });
  expect_error("mask: band 3-2/0-8/-1.. given; ranges inside 0-4/0-8 are required", [] {
    Mask(4, 8, {{.q = {3, 2}, .k = {0, 8}, .lo = -1}});
  });
}

TEST(Mask, NamesBothBandsThatOverlap) {
  expect_error(
      "mask: bands 0-8/0-8/..0 and 4-8/2-4/-3..3 overlap at query 4, key 2; disjoint bands are "
      "required",
      [] {
        Mask(8, 8, {{.q = {0, 8}, .k = {0, 8}, .hi = 0}, {{4, 8}, {2, 4}, -3, 3}});
      });
  expect_error(
      "mask: bands 0-4/0-8/.. and 3-8/7-8/.. overlap at query 3, key 7; disjoint bands are "
      "required",
      [] {
        Mask(8, 8, {{.q = {3, 8}, .k = {7, 8}}, {.q = {0, 4}, .k = {0, 8}}});
      });
}

TEST(Mask, RefusesToCountMorePairsThan63BitsHold) {
  expect_error(
      "count_pairs: 1099511627776 queries x 1099511627776 keys see 2^63 pairs or more; fewer are "
      "required",
      [] {
        full_mask({std::int64_t{1} << 40, std::int64_t{1} << 40}).area();
      });
  const std::int64_t n = std::int64_t{3} << 31;
  expect_error("mask: 2^63 visible pairs or more; fewer are required", [&] {
    documents_mask({n, n}, {n / 3, n / 3, n / 3}, Full{}).area();
  });
}

}  // namespace
}  // namespace armillary::plan
