// blocks_test.cpp: shards cut into blocks where the needs of ranks differ: every block is needed
// whole or not at all, and no cut is made without need.
#include "armillary/plan/blocks.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::plan {
namespace {

constexpr int kBlocksWorlds[] = {1, 2, 3, 4, 5, 8, 13};

struct Masked {
  Lengths lengths;
  std::string mask;
};

const std::vector<Masked>& masks() {
  static const std::vector<Masked> all{{{0, 0}, "causal"},
                                       {{1, 1}, "full"},
                                       {{5, 5}, "causal"},
                                       {{26, 26}, "full"},
                                       {{41, 41}, "causal"},
                                       {{41, 41}, "window:left=3,right=2"},
                                       {{41, 41}, "window:left=11,right=0"},
                                       {{20, 33}, "prefix:9,align=end"},
                                       {{33, 20}, "causal:align=end"},
                                       {{41, 41}, "documents:7,1,0,18,15"},
                                       {{41, 41}, "documents:7,1,18,15,within=full"},
                                       {{40, 40}, "documents:25,15,within=window,left=4,right=1"},
                                       {{41, 41}, "block_causal:6"},
                                       {{20, 9}, "bands:0-6/0-9/..;6-15/2-7/-9..-3"}};
  return all;
}

Problem make_problem(const Masked& masked, const std::string& layout, int world) {
  return {.world = world,
          .mask = parse_mask(masked.mask, masked.lengths),
          .layout = parse_layout(layout)};
}

void for_each_problem(const std::function<void(const Problem&)>& check) {
  for (const Masked& masked : masks()) {
    for (const char* layout : {"contiguous", "zigzag", "striped", "striped:4", "balanced"}) {
      for (const int world : kBlocksWorlds) {
        SCOPED_TRACE(fmt::format("{} of {} x {}, {}, world {}", masked.mask, masked.lengths.q,
                                 masked.lengths.kv, layout, world));
        check(make_problem(masked, layout, world));
      }
    }
  }
}

/// One side of the blocks with the other, so that a test is written once for both.
struct BlockSide {
  const std::vector<Block>& blocks;
  const std::vector<Runs>& shards;
  const std::vector<Runs>& others;
  std::function<bool(std::int64_t token, std::int64_t other)> sees;
};

void for_each_side(const Problem& problem, const std::function<void(const BlockSide&)>& check) {
  const Blocks blocks = make_blocks(problem);
  const Shards owned = shards(problem.layout, problem.mask, problem.world);
  {
    SCOPED_TRACE("queries");
    check({blocks.q, owned.q, owned.kv, [&](std::int64_t token, std::int64_t other) {
             return problem.mask.visible(token, other);
           }});
  }
  SCOPED_TRACE("keys");
  check({blocks.kv, owned.kv, owned.q, [&](std::int64_t token, std::int64_t other) {
           return problem.mask.visible(other, token);
         }});
}

/// Ranks of the other side that a token, or any token of a block, has a visible pair with.
std::set<Rank> users(const BlockSide& side, const Runs& runs) {
  std::set<Rank> ranks;
  for (Rank rank = 0; rank < static_cast<Rank>(side.others.size()); ++rank) {
    const std::vector<std::int64_t> others = positions(side.others[rank]);
    for (const std::int64_t token : positions(runs)) {
      if (std::any_of(others.begin(), others.end(),
                      [&](std::int64_t other) { return side.sees(token, other); })) {
        ranks.insert(rank);
      }
    }
  }
  return ranks;
}

bool is_interval(const Run& run) {
  return run.step == 1 && run.width == 1;
}

/// Numbered by owner, then in memory order: strung together they are the shards.
TEST(Blocks, AreTheShardsCutInPieces) {
  for_each_problem([](const Problem& problem) {
    for_each_side(problem, [](const BlockSide& side) {
      std::vector<std::vector<std::int64_t>> tokens(side.shards.size());
      Rank last = 0;
      for (const Block& block : side.blocks) {
        ASSERT_GE(block.owner, last) << "owners descend";
        ASSERT_LT(block.owner, static_cast<Rank>(tokens.size()));
        EXPECT_GT(block.tokens(), 0);
        last = block.owner;
        for (const std::int64_t token : positions(block.runs)) tokens[last].push_back(token);
      }
      for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
        EXPECT_EQ(tokens[rank], positions(side.shards[rank])) << "rank " << rank;
      }
    });
  });
}

/// A rank needs all tokens of a foreign block or none, so what moves is what is needed. Exact where
/// both are intervals of tokens.
TEST(Blocks, AreNeededWholeOrNotAtAll) {
  for_each_problem([](const Problem& problem) {
    if (problem.layout.kind == LayoutKind::Striped) return;
    for_each_side(problem, [](const BlockSide& side) {
      for (const Block& block : side.blocks) {
        const std::set<Rank> by_any = users(side, block.runs);
        for (const std::int64_t token : positions(block.runs)) {
          std::set<Rank> by_this = users(side, {run_of({token, token + 1})});
          // A token that only its owner sees does not move.
          if (by_any.count(block.owner) > 0) by_this.insert(block.owner);
          EXPECT_EQ(by_this, by_any)
              << "token " << token << " of the block of rank " << block.owner;
        }
      }
    });
  });
}

TEST(Blocks, NeighboursWithTheSameUsersAreOne) {
  for_each_problem([](const Problem& problem) {
    for_each_side(problem, [](const BlockSide& side) {
      std::set<std::int64_t> starts;  // Begins of the shards' runs, which are never joined.
      for (const Runs& shard : side.shards) {
        for (const plan::Run& run : shard) starts.insert(run.begin);
      }
      for (std::size_t b = 1; b < side.blocks.size(); ++b) {
        if (starts.count(side.blocks[b].runs[0].begin) > 0) continue;
        EXPECT_NE(users(side, side.blocks[b - 1].runs), users(side, side.blocks[b].runs))
            << "blocks " << b - 1 << " and " << b << " of rank " << side.blocks[b].owner;
      }
    });
  });
}

TEST(Blocks, StripedRunsStayWhole) {
  for_each_problem([](const Problem& problem) {
    for_each_side(problem, [](const BlockSide& side) {
      for (const Block& block : side.blocks) EXPECT_EQ(block.runs.size(), 1u);
      for (const Runs& shard : side.shards) {
        for (const plan::Run& run : shard) {
          if (is_interval(run)) continue;
          EXPECT_EQ(std::count_if(side.blocks.begin(), side.blocks.end(),
                                  [&](const Block& block) { return block.runs == Runs{run}; }),
                    1)
              << "run of step " << run.step << " at " << run.begin;
        }
      }
    });
  });
}

std::vector<Interval> spans(const std::vector<Block>& blocks, Rank owner) {
  std::vector<Interval> intervals;
  for (const Block& block : blocks) {
    if (block.owner == owner) intervals.push_back(block.runs[0].span());
  }
  return intervals;
}

/// Keys 0-9 | 10-19 | 20-29 with a window of 4 to the left: rank 1 needs the last 4 keys of rank 0.
TEST(Blocks, CutTheHaloOfAWindow) {
  const Blocks blocks =
      make_blocks(make_problem({{30, 30}, "window:left=4,right=0"}, "contiguous", 3));
  EXPECT_EQ(spans(blocks.kv, 0), (std::vector<Interval>{{0, 6}, {6, 10}}));
  EXPECT_EQ(spans(blocks.kv, 1), (std::vector<Interval>{{10, 16}, {16, 20}}));
  EXPECT_EQ(spans(blocks.kv, 2), (std::vector<Interval>{{20, 30}}));
  EXPECT_EQ(spans(blocks.q, 0), (std::vector<Interval>{{0, 10}}));
  EXPECT_EQ(spans(blocks.q, 1), (std::vector<Interval>{{10, 14}, {14, 20}}));
}

/// Documents 0-6, 7-11, 12-22, 23-29 on ranks of ten tokens: keys 0-6 and 7-9 have different
/// users; of rank 1 only 12-19 is seen by rank 2.
TEST(Blocks, CutDocumentsWhereOtherRanksSeeThem) {
  const Blocks blocks =
      make_blocks(make_problem({{30, 30}, "documents:7,5,11,7"}, "contiguous", 3));
  EXPECT_EQ(spans(blocks.kv, 0), (std::vector<Interval>{{0, 7}, {7, 10}}));
  EXPECT_EQ(spans(blocks.kv, 1), (std::vector<Interval>{{10, 12}, {12, 20}}));
  EXPECT_EQ(spans(blocks.kv, 2), (std::vector<Interval>{{20, 30}}));
}

/// Documents that end inside a shard and are nobody else's are not worth a cut.
TEST(Blocks, DocumentsOfOneRankStayTogether) {
  const Blocks blocks =
      make_blocks(make_problem({{30, 30}, "documents:3,3,4,5,5,2,8"}, "contiguous", 3));
  const std::vector<Interval> shards{{0, 10}, {10, 20}, {20, 30}};
  for (Rank rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(spans(blocks.kv, rank), std::vector<Interval>{shards[rank]});
    EXPECT_EQ(spans(blocks.q, rank), std::vector<Interval>{shards[rank]});
  }
}

/// Keys 0-3 of rank 0: its own queries see the first two, those of rank 1 all four. The owner's
/// own need moves nothing, so it cuts nothing.
TEST(Blocks, TheOwnersOwnNeedsCutNothing) {
  const Blocks blocks =
      make_blocks(make_problem({{4, 8}, "bands:0-2/0-2/..;2-4/0-8/.."}, "contiguous", 2));
  EXPECT_EQ(spans(blocks.kv, 0), (std::vector<Interval>{{0, 4}}));
  EXPECT_EQ(spans(blocks.kv, 1), (std::vector<Interval>{{4, 8}}));
}

TEST(Blocks, NoTokensNoBlocks) {
  const Blocks blocks = make_blocks(make_problem({{0, 7}, "full"}, "zigzag", 4));
  EXPECT_EQ(blocks.q.size(), 0u);
  EXPECT_EQ(blocks.kv.size(), 7u) << "pieces of zigzag that are not empty";
}

}  // namespace
}  // namespace armillary::plan
