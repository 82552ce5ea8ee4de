// mask_edges_test.cpp: rows at slanted edges, of blocks that an edge cuts and of many small blocks
// along it.
#include "armillary/sim/mask_edges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "armillary/plan/blocks.h"

namespace armillary::sim {
namespace {

using Ranks = std::vector<int>;

/// The edges of the queries of some ranks and the keys of some, of two ranks of 1,024 tokens each.
MaskEdges edges_of(const std::string& mask, const std::string& layout, const Ranks& q_owners,
                   const Ranks& kv_owners) {
  const plan::Problem problem{.world = 2,
                              .heads = 1,
                              .kv_heads = 1,
                              .head_dim = 64,
                              .value_dim = 64,
                              .mask = plan::parse_mask(mask, {2048, 2048}),
                              .layout = plan::parse_layout(layout)};
  const plan::Blocks blocks = plan::make_blocks(problem);
  const auto owned = [](const std::vector<plan::Block>& all, const Ranks& owners) {
    plan::BlockIds ids;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (std::ranges::count(owners, all[i].owner) > 0) ids.push_back(static_cast<int>(i));
    }
    return ids;
  };
  return mask_edges(problem.mask, blocks, owned(blocks.q, q_owners), owned(blocks.kv, kv_owners));
}

TEST(MaskEdges, OfTheDiagonalAreAllRows) {
  for (const std::string layout : {"contiguous", "zigzag", "striped:1", "striped:64", "balanced"}) {
    const MaskEdges edges = edges_of("causal", layout, {0}, {0});
    EXPECT_EQ(edges.first, 0) << layout;
    EXPECT_NEAR(edges.last, 1024, 32) << layout;
  }
}

// Balanced ranks have pieces of 64 tokens, some of them next to each other.
TEST(MaskEdges, RunAlongSmallBlocks) {
  for (const int rank : {0, 1}) {
    for (const std::string layout : {"striped:1", "striped:64", "balanced"}) {
      const MaskEdges edges = edges_of("causal", layout, {rank}, {1 - rank});
      EXPECT_EQ(edges.first, 0) << layout;
      EXPECT_GE(edges.last, layout == "balanced" ? 700 : 900) << layout;
      EXPECT_LE(edges.last, 1024) << layout;
    }
  }
}

// Chunks of 512 see all of another or nothing: straight edges, at which tiles end.
TEST(MaskEdges, StraightOnesDoNotCount) {
  for (const int rank : {0, 1}) {
    const MaskEdges edges = edges_of("causal", "zigzag", {rank}, {1 - rank});
    EXPECT_EQ(edges.first, 0) << rank;
    EXPECT_EQ(edges.last, 0) << rank;
  }
  EXPECT_EQ(edges_of("full", "contiguous", {0}, {0}).last, 0);
  EXPECT_EQ(edges_of("causal", "contiguous", {1}, {0}).last, 0);
  EXPECT_EQ(edges_of("block_causal:512", "contiguous", {0}, {0}).last, 0);
}

// Keys of both ranks, one after the other: the diagonal of each.
TEST(MaskEdges, OfInterleavedBlocksAreOneEach) {
  const MaskEdges striped = edges_of("causal", "striped:1", {0, 1}, {0, 1});
  EXPECT_NEAR(striped.last, 2 * 2048, 300);  // It jumps between the two ranks of queries.
  EXPECT_NEAR(edges_of("causal", "contiguous", {0, 1}, {0, 1}).last, 2048, 32);
}

// A row behind the window's length has both edges.
TEST(MaskEdges, OfAWindowAreTwo) {
  const MaskEdges edges = edges_of("window:left=512,right=0", "contiguous", {0}, {0});
  EXPECT_NEAR(edges.first, 512, 128);  // Samples are 128 rows apart.
  EXPECT_NEAR(edges.last, 1024, 1);
}

}  // namespace
}  // namespace armillary::sim
