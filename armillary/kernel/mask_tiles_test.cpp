// mask_tiles_test.cpp: the cut of a mask into hidden, visible and mixed tiles. Random masks and
// runs are compared pair by pair with the mask itself.
#include "armillary/kernel/mask_tiles.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

namespace armillary::kernel {
namespace {

using plan::Interval;
using plan::Run;
using plan::Runs;

/// Disjoint runs of positions below the returned end, with any step and width.
Runs random_runs(std::int64_t& end) {
  Runs runs;
  end = 0;
  for (int n = *rc::gen::inRange(0, 4); n > 0; --n) {
    const std::int64_t width = *rc::gen::inRange(1, 5);
    Run run{.begin = end + *rc::gen::inRange(0, 4), .count = *rc::gen::inRange(1, 12)};
    run.step = width + *rc::gen::inRange(0, 6);
    run.width = width;
    if (run.contiguous()) run = plan::run_of(run.span());
    runs.push_back(run);
    end = run.last() + 1;
  }
  if (*rc::gen::arbitrary<bool>()) std::reverse(runs.begin(), runs.end());
  return runs;
}

plan::Mask random_mask(std::int64_t q_len, std::int64_t kv_len) {
  const plan::Lengths lengths{.q = q_len, .kv = kv_len};
  const auto number = [](std::int64_t end) { return *rc::gen::inRange<std::int64_t>(0, end); };
  switch (number(4)) {
    case 0:
      return plan::causal_mask(lengths, plan::Align::End);
    case 1:
      return plan::window_mask(lengths, {.left = number(9), .right = number(9)},
                               plan::Align::Start);
    case 2:
      return plan::prefix_mask(lengths, number(kv_len + 1), plan::Align::Start);
    default: {
      const std::int64_t q = number(q_len + 1);
      const std::int64_t k = number(kv_len + 1);
      return plan::Mask(q_len, kv_len,
                        {{.q = {0, q}, .k = {0, k}}, {.q = {q, q_len}, .k = {k, kv_len}}});
    }
  }
}

RC_GTEST_PROP(Cut, KeepsMemoryOrderAndTheLimit, ()) {
  std::int64_t end = 0;
  const Runs runs = random_runs(end);
  const std::int64_t limit = *rc::gen::inRange(1, 20);
  std::vector<std::int64_t> joined;
  for (const Strip& strip : cut(runs, limit)) {
    RC_ASSERT(strip.rows.begin == static_cast<std::int64_t>(joined.size()));
    const auto part = plan::positions(strip.runs);
    joined.insert(joined.end(), part.begin(), part.end());
    RC_ASSERT(strip.rows.end == static_cast<std::int64_t>(joined.size()));
    RC_ASSERT(!part.empty());
    RC_ASSERT(strip.rows.end - strip.rows.begin <= limit);
  }
  RC_ASSERT(joined == plan::positions(runs));
}

TEST(Cut, EndsAHalfFullStripWhereARunEnds) {
  const auto rows = [](const Runs& runs) {
    std::vector<std::int64_t> sizes;
    for (const Strip& strip : cut(runs, 8)) sizes.push_back(strip.rows.end - strip.rows.begin);
    return sizes;
  };
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(rows({{.begin = 0, .count = 5}, {.begin = 50, .count = 5}}), (Sizes{5, 5}));
  EXPECT_EQ(rows({{.begin = 0, .count = 3}, {.begin = 50, .count = 9}}), (Sizes{8, 4}));
  EXPECT_EQ(rows({{.begin = 0, .count = 5}, {.begin = 5, .count = 5}}),
            (Sizes{8, 2}));  // one piece
  EXPECT_EQ(rows({{.begin = 0, .count = 5, .step = 9, .width = 3}}), (Sizes{8, 7}));
  EXPECT_EQ(rows({}), (Sizes{}));
}

RC_GTEST_PROP(FindMaskTiles, HoldEveryVisiblePairOnceAndNothingWithoutOne, ()) {
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  const Runs q_runs = random_runs(q_len);
  const Runs k_runs = random_runs(kv_len);
  const plan::Mask mask = random_mask(q_len, kv_len);
  const MaskTileLimits limits{.q_rows = *rc::gen::inRange(1, 20),
                              .k_rows = *rc::gen::inRange(1, 20)};
  const MaskTiles mask_tiles = find_mask_tiles(mask, q_runs, k_runs, limits);

  std::int64_t area = 0;
  for (const MaskTile& mask_tile : mask_tiles.visible) {
    const Strip& q = mask_tiles.q[mask_tile.q];
    const Strip& k = mask_tiles.k[mask_tile.k];
    const auto q_positions = plan::positions(q.runs);
    const auto k_positions = plan::positions(k.runs);
    std::vector<int> marks(q_positions.size() * k_positions.size(), 0);
    for (const auto& [q_row, k_rows] : visible_keys(mask, q, k)) {
      for (std::int64_t k_row = k_rows.begin; k_row < k_rows.end; ++k_row) {
        ++marks.at(q_row * k_positions.size() + k_row);
      }
    }
    for (std::size_t i = 0; i < marks.size(); ++i) {
      const auto q_position = q_positions[i / k_positions.size()];
      const auto k_position = k_positions[i % k_positions.size()];
      RC_ASSERT(marks[i] == (mask.visible(q_position, k_position) ? 1 : 0));
    }
    const std::size_t visible = std::count(marks.begin(), marks.end(), 1);
    RC_ASSERT(visible > 0U);
    RC_ASSERT(mask_tile.whole == (visible == marks.size()));
    area += static_cast<std::int64_t>(visible);
  }
  RC_ASSERT(area == mask.area(q_runs, k_runs));
}

std::size_t whole(const MaskTiles& mask_tiles) {
  return std::count_if(mask_tiles.visible.begin(), mask_tiles.visible.end(),
                       [](const MaskTile& mask_tile) { return mask_tile.whole; });
}

TEST(FindMaskTiles, WorkIsThatOfTheBands) {
  const MaskTileLimits limits{.q_rows = 64, .k_rows = 64};
  const plan::Lengths lengths{.q = 4096, .kv = 4096};
  const Runs all{{.begin = 0, .count = 4096}};

  const MaskTiles causal =
      find_mask_tiles(plan::causal_mask(lengths, plan::Align::Start), all, all, limits);
  EXPECT_EQ(causal.visible.size(), 64u * 65 / 2);
  EXPECT_EQ(whole(causal), 64u * 63 / 2);

  const MaskTiles documents = find_mask_tiles(
      plan::documents_mask(lengths, std::vector<std::int64_t>(32, 128)), all, all, limits);
  EXPECT_EQ(documents.visible.size(), 32u * 3);
  EXPECT_EQ(whole(documents), 32u);

  // Zigzag on 2 ranks: the late piece of rank 0 sees all tokens of rank 1, the early piece none.
  const Runs rank0{{.begin = 0, .count = 1024}, {.begin = 3072, .count = 1024}};
  const Runs rank1{{.begin = 1024, .count = 2048}};
  const MaskTiles zigzag =
      find_mask_tiles(plan::causal_mask(lengths, plan::Align::Start), rank0, rank1, limits);
  EXPECT_EQ(zigzag.visible.size(), 16u * 32);
  EXPECT_EQ(whole(zigzag), 16u * 32);
}

}  // namespace
}  // namespace armillary::kernel
