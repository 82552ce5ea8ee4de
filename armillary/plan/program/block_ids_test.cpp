#include "armillary/plan/program/block_ids.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace armillary::plan {
namespace {

std::vector<int> listed(const BlockIds& ids) {
  return {ids.begin(), ids.end()};
}

TEST(BlockIds, HoldAnyListInItsOrder) {
  constexpr int kMost = std::numeric_limits<int>::max();
  const std::vector<std::vector<int>> lists{
      {},        {7},        {0, 1, 2, 3},       {0, 2, 3, 9},        {3, 2, 1},
      {4, 4, 5}, {-1, 0, 1}, {kMost - 1, kMost}, {kMost, -kMost - 1}, {5, 6, 0, 1}};
  for (const std::vector<int>& list : lists) {
    const BlockIds ids(list);
    EXPECT_EQ(listed(ids), list);
    EXPECT_EQ(ids.size(), list.size());
    EXPECT_EQ(ids.empty(), list.empty());
    if (list.empty()) continue;
    EXPECT_EQ(ids.front(), list.front());
    EXPECT_EQ(ids.back(), list.back());
  }
}

TEST(BlockIds, NeighboursAreOneRun) {
  EXPECT_TRUE(BlockIds().runs().empty());
  EXPECT_EQ(BlockIds({4, 5, 6}).runs().size(), 1u);
  EXPECT_EQ(BlockIds({4, 5, 7}).runs().size(), 2u);
}

TEST(BlockIds, AreEqualWhereTheirListsAre) {
  const std::vector<std::vector<int>> lists{{}, {0}, {0, 1}, {0, 1, 2}, {0, 2}, {1, 0}, {0, 1, 3}};
  for (const std::vector<int>& a : lists) {
    for (const std::vector<int>& b : lists) EXPECT_EQ(BlockIds(a) == BlockIds(b), a == b);
  }
}

TEST(BlockIds, CopiesAreTheirOwn) {
  for (const std::vector<int>& list : {std::vector<int>{1, 2}, std::vector<int>{1, 3}}) {
    const BlockIds ids(list);
    BlockIds copy = ids;
    copy.push_back(8);
    EXPECT_EQ(listed(ids), list);
    const BlockIds moved = std::move(copy);
    EXPECT_EQ(moved.back(), 8);
    BlockIds assigned{9};
    assigned = ids;
    EXPECT_EQ(assigned, ids);
  }
}

TEST(BlockIds, AscendOrDoNot) {
  EXPECT_TRUE(ascend_below({}, 0));
  EXPECT_TRUE(ascend_below({0, 1, 4}, 5));
  EXPECT_FALSE(ascend_below({0, 1, 5}, 5));
  EXPECT_FALSE(ascend_below({-1, 0}, 5));
  EXPECT_FALSE(ascend_below({0, 0}, 5));
  EXPECT_FALSE(ascend_below({2, 3, 1}, 5));
}

TEST(BlockIds, IncludeAndMeetAsSetsDo) {
  std::mt19937 random(7);
  const auto draw = [&] {
    std::vector<int> ids;
    const unsigned rare = 1 + random() % 4;
    for (int id = 0; id < 12; ++id) {
      if (random() % rare == 0) ids.push_back(id);
    }
    return ids;
  };
  for (int repeat = 0; repeat < 2000; ++repeat) {
    const std::vector<int> a = draw();
    const std::vector<int> b = draw();
    EXPECT_EQ(includes(BlockIds(a), BlockIds(b)),
              std::includes(a.begin(), a.end(), b.begin(), b.end()));
    EXPECT_EQ(meet(BlockIds(a), BlockIds(b)),
              std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) != a.end());
  }
}

}  // namespace
}  // namespace armillary::plan
