// kv_cache_test.cpp: rows of sessions on one of two ranks: appends that end and that are dropped,
// shared pages, and layouts that change or fail to.
#include "armillary/serve/kv_cache.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/testing/expect_error.h"

namespace armillary::serve {
namespace {

using plan::Interval;
using plan::relayout::CacheExtent;
using plan::relayout::CacheLayout;

CacheExtent contiguous(std::int64_t tokens) {
  return {.tokens = tokens, .layout = {}};
}

/// Writes as many tokens of this value as an append has here, and ends it.
void append(KvCache& cache, SessionId session, const CacheExtent& extent, double value) {
  cache.begin_append(session, extent);
  std::int64_t count = 0;
  for (const Interval& range : cache.new_rows(session)) count += range.end - range.begin;
  cache.write(0, cache.new_rows(session), at::full({count, 1, 2}, value),
              at::full({count, 1, 3}, value));
  cache.end_append(session);
}

/// The values of a session's tokens on this rank.
std::vector<double> values_in(const KvCache& cache, SessionId session) {
  std::vector<double> values;
  for (const Interval& range : cache.rows(session, {0, cache.tokens(session, 0)})) {
    const at::Tensor k = cache.k(0, range);
    EXPECT_EQ(cache.v(0, range).size(0), k.size(0));
    for (std::int64_t i = 0; i < k.size(0); ++i) values.push_back(k[i][0][1].item().toDouble());
  }
  return values;
}

TEST(KvCache, KeepsTheTokensOfItsRank) {
  KvCache cache({.page = 4, .pages = 8}, 0, 2);
  const SessionId a = cache.open();
  append(cache, a, contiguous(5), 1);
  append(cache, a, contiguous(4), 2);
  EXPECT_EQ(cache.tokens(a), 9);
  EXPECT_EQ(cache.tokens(a, 0), 4);
  EXPECT_EQ(cache.tokens(a, 1), 5);
  EXPECT_EQ(values_in(cache, a), (std::vector<double>{1, 1, 2, 2}));
  EXPECT_EQ(cache.bytes(), 8 * 4 * (2 + 3) * 4);
  EXPECT_EQ(cache.free_pages(0), 7);
  EXPECT_EQ(cache.free_pages(1), 6);
}

TEST(KvCache, DropsAnAppend) {
  KvCache cache({.page = 4, .pages = 8}, 0, 2);
  const SessionId a = cache.open();
  append(cache, a, contiguous(6), 1);
  cache.begin_append(a, contiguous(20));
  EXPECT_EQ(cache.tokens(a), 6);
  EXPECT_EQ(cache.free_pages(0), 4);
  cache.drop_append(a);
  EXPECT_EQ(cache.free_pages(0), 7);
  EXPECT_EQ(cache.tokens(a, 0), 3);
  cache.begin_append(a, contiguous(20));
  cache.release(a);
  EXPECT_EQ(cache.free_pages(0), 8);
}

TEST(KvCache, CopiesASharedPage) {
  KvCache cache({.page = 4, .pages = 8}, 0, 1);
  const SessionId a = cache.open();
  append(cache, a, contiguous(6), 1);
  const SessionId b = cache.fork(a);
  append(cache, b, contiguous(1), 2);
  append(cache, a, contiguous(2), 3);
  EXPECT_EQ(values_in(cache, a), (std::vector<double>{1, 1, 1, 1, 1, 1, 3, 3}));
  EXPECT_EQ(values_in(cache, b), (std::vector<double>{1, 1, 1, 1, 1, 1, 2}));
  EXPECT_EQ(cache.free_pages(0), 5);
  cache.release(a);
  EXPECT_EQ(values_in(cache, b), (std::vector<double>{1, 1, 1, 1, 1, 1, 2}));
}

TEST(KvCache, ChangesItsLayoutOrStaysAsItWas) {
  KvCache cache({.page = 4, .pages = 8}, 0, 2);
  const SessionId a = cache.open();
  append(cache, a, contiguous(8), 1);
  const CacheLayout all_here = plan::relayout::one_extent(8, {}, 1);
  EXPECT_THROW(
      cache.change_layout(a, all_here, [](const auto&, const auto&) { throw Error("no"); }), Error);
  EXPECT_EQ(cache.free_pages(0), 7);
  EXPECT_EQ(values_in(cache, a), std::vector<double>(4, 1));
  cache.change_layout(a, all_here, [&](const auto& before, const auto& after) {
    EXPECT_EQ(before, (std::vector<Interval>{{0, 4}}));
    cache.write(0, after, at::full({8, 1, 2}, 5.0), at::full({8, 1, 3}, 5.0));
  });
  EXPECT_EQ(cache.tokens(a, 0), 8);
  EXPECT_EQ(cache.tokens(a, 1), 0);
  EXPECT_EQ(values_in(cache, a), std::vector<double>(8, 5));
  EXPECT_EQ(cache.free_pages(0), 6);
  EXPECT_EQ(cache.free_pages(1), 8);
}

TEST(KvCache, JoinsExtentsThatGoOn) {
  CacheLayout layout = plan::relayout::one_extent(6, {}, 2);
  for (std::int64_t position = 6; position < 20; ++position) {
    add_extent(layout, extent_by_page(position, 1, 4));
  }
  add_extent(layout, contiguous(0));
  ASSERT_EQ(layout.extents.size(), 2U);
  EXPECT_EQ(layout.extents[1], extent_by_page(6, 14, 4));
  add_extent(layout, extent_by_page(20, 1, 8));
  EXPECT_EQ(layout.extents.size(), 3U);
}

TEST(KvCache, RefusesSessionsThatAreNotOpen) {
  KvCache cache({.page = 4, .pages = 8}, 0, 1);
  const SessionId a = cache.open();
  cache.release(a);
  EXPECT_NE(cache.open(), a);
  EXPECT_THAT(error_of([&] { cache.fork(a); }),
              testing::HasSubstr("session 0 given, which is not open; one of 1 open session is"));
}

}  // namespace
}  // namespace armillary::serve
