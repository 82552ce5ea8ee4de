// page_pool_test.cpp: pages are shared, copied before they are written to, and given back; in a
// random order too.
#include "armillary/serve/page_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "armillary/core/testing/expect_error.h"

namespace armillary::serve {
namespace {

using plan::Interval;

TEST(PagePool, GivesRowsInFewRanges) {
  PagePool pool(8, 4);
  PagedTokens a;
  EXPECT_FALSE(pool.append(a, 6));
  PagedTokens b;
  pool.append(b, 1);
  pool.append(a, 5);
  EXPECT_EQ(pool.rows(a, {0, 11}), (std::vector<Interval>{{0, 8}, {12, 15}}));
  EXPECT_EQ(pool.rows(a, {0, 3}), (std::vector<Interval>{{0, 3}}));
  EXPECT_EQ(pool.rows(b, {0, 1}), (std::vector<Interval>{{8, 9}}));
  EXPECT_EQ(pool.rows(b, {0, 0}), std::vector<Interval>{});
  EXPECT_EQ(pool.free_pages(), 4);
}

TEST(PagePool, CopiesASharedPageBeforeItIsWrittenTo) {
  PagePool pool(8, 4);
  PagedTokens parent;
  pool.append(parent, 6);
  PagedTokens child = pool.fork(parent, 6);
  EXPECT_EQ(pool.free_pages(), 6);
  EXPECT_EQ(pool.pages_for(child, 1), 1);
  EXPECT_EQ(pool.pages_for(child, 3), 2);
  const auto copy = pool.append(child, 1);
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->from, 1);
  EXPECT_EQ(copy->to, 2);
  EXPECT_EQ(copy->tokens, 2);
  // The parent has its last page for itself again.
  EXPECT_EQ(pool.users(0), 2);
  EXPECT_EQ(pool.users(1), 1);
  EXPECT_EQ(pool.pages_for(parent, 1), 0);
  EXPECT_FALSE(pool.append(parent, 1));
  // A full last page needs no copy.
  PagedTokens full = pool.fork(parent, 4);
  EXPECT_EQ(pool.pages_for(full, 1), 1);
  EXPECT_FALSE(pool.append(full, 1));
}

TEST(PagePool, GivesPagesBackWithTheLastUser) {
  PagePool pool(4, 2);
  PagedTokens parent;
  pool.append(parent, 5);
  PagedTokens child = pool.fork(parent, 3);
  pool.cut(parent, 0);
  EXPECT_EQ(pool.free_pages(), 2);
  EXPECT_EQ(pool.users(0), 1);
  pool.cut(child, 2);
  EXPECT_EQ(pool.free_pages(), 3);
  pool.cut(child, 0);
  EXPECT_EQ(pool.free_pages(), 4);
}

/// Pages at the front that one session has left stay with another that has them too.
TEST(PagePool, LeavesPagesAtTheFront) {
  PagePool pool(8, 4);
  PagedTokens parent;
  pool.append(parent, 14);
  PagedTokens child = pool.fork(parent, 14);
  pool.leave_front(parent, 9);
  pool.leave_front(parent, 11);
  EXPECT_EQ(pool.users(0), 1);
  EXPECT_EQ(pool.users(2), 2);
  EXPECT_EQ(pool.rows(parent, {9, 14}), (std::vector<Interval>{{9, 14}}));
  EXPECT_THROW(pool.rows(parent, {7, 14}), InternalError);
  PagedTokens grandchild = pool.fork(parent, 14);
  pool.leave_front(child, 8);
  EXPECT_EQ(pool.free_pages(), 6);
  EXPECT_EQ(pool.append(grandchild, 3)->tokens, 2);
  for (PagedTokens* session : {&parent, &child, &grandchild}) pool.cut(*session, 0);
  EXPECT_EQ(pool.free_pages(), 8);
  // A session that never had them.
  PagedTokens late = pool.without_front(11);
  EXPECT_EQ(late.tokens, 8);
  pool.append(late, 5);
  EXPECT_EQ(pool.free_pages(), 6);
  EXPECT_THROW(pool.rows(late, {0, 13}), InternalError);
}

/// Any order of appends, forks and cuts: users are as many as sessions have the page, and each page
/// that is written to has one.
TEST(PagePool, CountsUsers) {
  std::mt19937 random(1);
  PagePool pool(24, 3);
  std::vector<PagedTokens> sessions(1);
  for (int step = 0; step < 3000; ++step) {
    const std::size_t i = random() % sessions.size();
    const auto tokens = static_cast<std::int64_t>(random() % 7);
    switch (random() % 4) {
      case 0:
        if (sessions.size() < 6) {
          sessions.push_back(pool.fork(sessions[i], sessions[i].tokens - sessions[i].tokens % 2));
        }
        break;
      case 1:
        pool.cut(sessions[i], sessions[i].tokens / 2);
        break;
      default:
        if (tokens == 0 || pool.pages_for(sessions[i], tokens) > pool.free_pages()) break;
        pool.append(sessions[i], tokens);
        EXPECT_EQ(pool.users(sessions[i].pages.back()), 1);
    }
    std::map<std::int64_t, int> users;
    for (const PagedTokens& session : sessions) {
      ASSERT_EQ(static_cast<std::int64_t>(session.pages.size()), (session.tokens + 2) / 3);
      for (const std::int64_t page : session.pages) ++users[page];
    }
    ASSERT_EQ(pool.free_pages(), 24 - static_cast<std::int64_t>(users.size()));
    for (const auto& [page, count] : users) ASSERT_EQ(pool.users(page), count);
  }
}

TEST(PagePool, RefusesNothing) {
  EXPECT_THAT(error_of([] { PagePool(0, 16); }),
              testing::HasSubstr("0 pages of 16 tokens given; at least 1 of 1 is required"));
}

}  // namespace
}  // namespace armillary::serve
