// cache_layout_test.cpp: every position, head and layer has an owner, and ranks have coordinates.
#include "armillary/plan/relayout/cache_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "armillary/plan/relayout/testing/relayout_shapes.h"

namespace armillary::plan::relayout {
namespace {

TEST(CacheLayout, DealsEveryPositionOnceInAscendingOrder) {
  for (const std::int64_t tokens : {0, 1, 7, 29}) {
    for (const CacheLayout& layout : small_layouts(tokens)) {
      std::vector<std::int64_t> all;
      for (const Runs& runs : token_runs(layout)) {
        const std::vector<std::int64_t> mine = positions(runs);
        EXPECT_TRUE(std::ranges::is_sorted(mine)) << to_string(layout);
        all.insert(all.end(), mine.begin(), mine.end());
      }
      std::ranges::sort(all);
      ASSERT_EQ(static_cast<std::int64_t>(all.size()), tokens) << to_string(layout);
      for (std::int64_t i = 0; i < tokens; ++i) {
        EXPECT_EQ(all[static_cast<std::size_t>(i)], i) << to_string(layout);
      }
    }
  }
}

TEST(CacheLayout, GoesOnByPageBehindWhatWasSkipped) {
  // Pages of 4 over 2 ranks, from position 6 on: the rest of page 1, then pages 2 and 3.
  const CacheLayout layout{.extents = {{.tokens = 6, .layout = {}},
                                       {.tokens = 9,
                                        .layout = {.kind = LayoutKind::Striped, .stripe = 4},
                                        .skipped = 6}},
                           .ranks = 2};
  const std::vector<Runs> runs = token_runs(layout);
  EXPECT_EQ(positions(runs[0]), (std::vector<std::int64_t>{0, 1, 2, 8, 9, 10, 11}));
  EXPECT_EQ(positions(runs[1]), (std::vector<std::int64_t>{3, 4, 5, 6, 7, 12, 13, 14}));
}

TEST(CacheLayout, HasPlacesOfRanks) {
  CacheLayout layout = one_extent(8, {}, 12);
  layout.first = 2;
  layout.head_groups = 2;
  layout.stages = 3;
  EXPECT_EQ(layout.token_ranks(), 2);
  EXPECT_FALSE(place_of(layout, 1));
  EXPECT_FALSE(place_of(layout, 14));
  for (Rank rank = 2; rank < 14; ++rank) EXPECT_EQ(rank_of(layout, *place_of(layout, rank)), rank);
  EXPECT_EQ(place_of(layout, 9), (CachePlace{.stage = 1, .token_rank = 1, .head_group = 1}));
  EXPECT_EQ(layers_of(layout, 7, 1), (Interval{2, 4}));
}

/// Claim I5: with fewer heads than groups every head is addressed by itself.
TEST(CacheLayout, CutsHeadsOrCopiesThem) {
  CacheLayout layout = one_extent(8, {}, 6);
  layout.head_groups = 6;
  EXPECT_EQ(heads_of(layout, 9, 1), (Heads{1, 3}));
  EXPECT_EQ(copies_of(layout, 9), 1);
  EXPECT_EQ(heads_of(layout, 3, 3), (Heads{1, 2}));
  EXPECT_EQ(copies_of(layout, 3), 2);
}

TEST(CacheLayout, IsPrinted) {
  CacheLayout layout = one_extent(8, {.kind = LayoutKind::Striped, .stripe = 16}, 8);
  EXPECT_EQ(to_string(layout), "striped:16 over ranks 0-7");
  layout.head_groups = 2;
  layout.stages = 2;
  layout.extents.insert(layout.extents.begin(), CacheExtent{.tokens = 3, .layout = {}});
  EXPECT_EQ(to_string(layout),
            "contiguous then striped:16 over ranks 0-7, 2 head groups, 2 stages");
  EXPECT_EQ(to_string(one_extent(8, {}, 1)), "contiguous on rank 0");
}

}  // namespace
}  // namespace armillary::plan::relayout
