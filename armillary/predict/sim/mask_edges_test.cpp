// mask_edges_test.cpp: rows at slanted edges, of blocks that an edge cuts and of many small blocks
// along it.
#include "armillary/predict/sim/mask_edges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "armillary/plan/blocks.h"

namespace armillary::sim {
namespace {

using Ranks = std::vector<int>;

/// A problem of some ranks that have as many tokens each.
struct Case {
  std::string mask = "causal";
  std::string layout = "contiguous";
  int world = 2;
  std::int64_t tokens = 1024;
};

/// The edges of the queries of some ranks and the keys of some.
MaskEdges edges_of(const Case& example, const Ranks& q_owners, const Ranks& kv_owners) {
  const std::int64_t seq = example.world * example.tokens;
  const plan::Problem problem{.world = example.world,
                              .heads = 1,
                              .kv_heads = 1,
                              .head_dim = 64,
                              .value_dim = 64,
                              .mask = plan::parse_mask(example.mask, {seq, seq}),
                              .layout = plan::parse_layout(example.layout)};
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

void expect_edges(const Case& example, const Ranks& q_owners, const Ranks& kv_owners, double first,
                  double last) {
  const MaskEdges edges = edges_of(example, q_owners, kv_owners);
  EXPECT_EQ(edges.first, first) << example.mask << " " << example.layout << " " << example.tokens;
  EXPECT_EQ(edges.last, last) << example.mask << " " << example.layout << " " << example.tokens;
}

TEST(MaskEdges, OfTheDiagonalAreAllRows) {
  for (const std::string layout : {"contiguous", "zigzag", "striped:1", "striped:64", "balanced"}) {
    for (const std::int64_t tokens : {64, 1024, 65536}) {
      expect_edges({.layout = layout, .tokens = tokens}, {0}, {0}, 0, static_cast<double>(tokens));
    }
  }
  expect_edges({.tokens = 1}, {0}, {0}, 0, 0);
}

// The keys of the other rank are between those of this one. The balanced one has pieces of 64
// tokens, some of them next to each other, and its first and last rows see none or all of them.
TEST(MaskEdges, RunAlongSmallBlocks) {
  for (const int rank : {0, 1}) {
    for (const std::string layout : {"striped:1", "striped:64", "balanced"}) {
      const MaskEdges edges = edges_of({.layout = layout}, {rank}, {1 - rank});
      EXPECT_EQ(edges.first, 0) << layout;
      EXPECT_GE(edges.last, layout == "balanced" ? 448 : 896) << layout;
      EXPECT_LE(edges.last, layout == "balanced" ? 960 : 1024) << layout;
    }
  }
}

// Chunks that see all of another or nothing: straight edges, at which tiles end.
TEST(MaskEdges, StraightOnesDoNotCount) {
  for (const int rank : {0, 1}) {
    expect_edges({.layout = "zigzag"}, {rank}, {1 - rank}, 0, 0);
    expect_edges({.layout = "zigzag", .world = 4, .tokens = 128}, {rank}, {2, 3}, 0, 0);
    expect_edges({.layout = "zigzag", .world = 4, .tokens = 32}, {rank}, {2, 3}, 0, 0);
  }
  expect_edges({.mask = "full"}, {0}, {0}, 0, 0);
  expect_edges({}, {1}, {0}, 0, 0);
  for (const std::int64_t tokens : {1024, 8192}) {
    for (const std::string mask : {"block_causal:128", "block_causal:512"}) {
      expect_edges({.mask = mask, .tokens = tokens}, {0}, {0}, 0, 0);
    }
  }
}

TEST(MaskEdges, OfDocumentsAreThoseWithinThem) {
  const std::string documents = "documents:512,512,512,512";
  expect_edges({.mask = documents}, {0}, {0}, 0, 1024);
  expect_edges({.mask = documents + ",within=full"}, {0}, {0}, 0, 0);
}

// Keys of both ranks, one after the other: the diagonal of each.
TEST(MaskEdges, OfInterleavedBlocksAreOneEach) {
  expect_edges({.layout = "striped:1"}, {0, 1}, {0, 1}, 0, 2 * 2048);
  expect_edges({}, {0, 1}, {0, 1}, 0, 2048);
}

// A row behind the window's length has both edges; the first keys are seen by all.
TEST(MaskEdges, OfAWindowAreTwo) {
  expect_edges({.mask = "window:left=512,right=0"}, {0}, {0}, 512, 1024);
  expect_edges({.mask = "bands:0-2048/0-4/..0;0-2048/4-2048/-512..0"}, {0}, {0}, 512, 1024);
}

}  // namespace
}  // namespace armillary::sim
