// visibility_test.cpp: which blocks see each other, by the mask's tokens, and the ranks that need a
// block: compared with a count of pairs, and made for 16,384 ranks.
#include "armillary/plan/mask/visibility.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/strategies/movement.h"
#include "armillary/plan/strategies/strategy.h"

namespace armillary::plan {
namespace {

struct SeenCase {
  Lengths lengths;
  const char* mask;
};

/// Masks with edges that move with the position, that jump, and that leave holes.
constexpr SeenCase kSeenCases[] = {{{0, 0}, "causal"},
                                   {{26, 26}, "full"},
                                   {{41, 41}, "causal"},
                                   {{41, 41}, "window:left=3,right=2"},
                                   {{20, 33}, "prefix:9,align=end"},
                                   {{33, 20}, "causal:align=end"},
                                   {{41, 41}, "documents:7,1,0,18,15"},
                                   {{40, 40}, "documents:25,15,within=window,left=4,right=1"},
                                   {{41, 41}, "block_causal:6"},
                                   {{20, 9}, "bands:0-6/0-9/..;6-15/2-7/-9..-3"}};

void for_each_case(const std::function<void(const Problem&)>& check) {
  for (const SeenCase& one : kSeenCases) {
    for (const char* layout : {"contiguous", "zigzag", "striped", "striped:4", "balanced"}) {
      for (const int world : {1, 2, 3, 5, 8}) {
        SCOPED_TRACE(fmt::format("{} of {} x {}, {}, world {}", one.mask, one.lengths.q,
                                 one.lengths.kv, layout, world));
        check({.world = world,
               .mask = parse_mask(one.mask, one.lengths),
               .layout = parse_layout(layout)});
      }
    }
  }
}

/// True if the mask shows a pair of tokens of the two blocks, looked up token by token.
bool any_pair(const Mask& mask, const Block& q, const Block& kv) {
  for (const std::int64_t query : positions(q.runs)) {
    for (const std::int64_t key : positions(kv.runs)) {
      if (mask.visible(query, key)) return true;
    }
  }
  return false;
}

TEST(Visibility, IsThatOfTheTokens) {
  for_each_case([](const Problem& problem) {
    const Blocks blocks = make_blocks(problem);
    const Visibility visibility(problem.mask, blocks);
    for (std::size_t q = 0; q < blocks.q.size(); ++q) {
      for (std::size_t kv = 0; kv < blocks.kv.size(); ++kv) {
        ASSERT_EQ(visibility.visible(q, kv), any_pair(problem.mask, blocks.q[q], blocks.kv[kv]))
            << "query block " << q << ", key block " << kv;
      }
    }
  });
}

/// Blocks that are no intervals have a bit for each pair, blocks of any numbers of runs too.
TEST(Visibility, TakesBlocksOfSeveralRuns) {
  const Mask mask = parse_mask("causal", {.q = 8, .kv = 8});
  const Block outer{.owner = 0, .runs = {{.begin = 0, .count = 2}, {.begin = 6, .count = 2}}};
  const Block inner{.owner = 1, .runs = {{.begin = 2, .count = 4}}};
  const Visibility visibility(mask, {.q = {outer, inner, {}}, .kv = {outer, inner}});
  EXPECT_FALSE(visibility.by_position());
  EXPECT_TRUE(visibility.visible(0, 0));
  EXPECT_TRUE(visibility.visible(0, 1));
  EXPECT_TRUE(visibility.visible(1, 0));
  EXPECT_FALSE(visibility.visible(2, 0)) << "a block without tokens";
}

TEST(Visibility, RefusesMorePairsOfStripesThanFit) {
  const Blocks blocks{.q = std::vector<Block>(40'000), .kv = std::vector<Block>(40'000)};
  EXPECT_THAT(
      [&] {
        Visibility(full_mask({1, 1}), blocks);
      },
      testing::ThrowsMessage<InvalidArgument>(
          "plan: 40000 query blocks and 40000 key blocks of stripes; at most 2^30 pairs can be "
          "planned: use a smaller world, or a layout of intervals, such as zigzag"));
}

TEST(BlockUsers, AreTheGroupsThatSeeABlock) {
  for_each_case([](const Problem& problem) {
    const Blocks blocks = make_blocks(problem);
    const Visibility visibility(problem.mask, blocks);
    for (const MaskSide side : {MaskSide::Queries, MaskSide::Keys}) {
      const bool keys = side == MaskSide::Keys;
      const std::vector<Block>& table = keys ? blocks.kv : blocks.q;
      const std::vector<Block>& others = keys ? blocks.q : blocks.kv;
      BlockUsersOptions options{.side = side, .groups = 3};
      for (const Block& other : others) options.group_of.push_back(other.owner % 3);
      const BlockUsers users(visibility, options);
      for (int b = 0; b < static_cast<int>(table.size()); ++b) {
        for (int group = 0; group < 3; ++group) {
          bool needs = false;
          for (int other = 0; other < static_cast<int>(others.size()); ++other) {
            needs = needs || (options.group_of[other] == group &&
                              (keys ? visibility.visible(other, b) : visibility.visible(b, other)));
          }
          ASSERT_EQ(users.needs(group, b), needs) << "block " << b << ", group " << group;
        }
        EXPECT_TRUE(ascend_below(users.of(b), 3));
      }
    }
  });
}

/// The two counts of members that a tile passes agree for every set of members.
TEST(Reach, OfAListIsThatOfItsMembers) {
  for (const Movement movement : {Movement::Ring, Movement::RingBack, Movement::Bidirectional}) {
    for (int n = 1; n <= 7; ++n) {
      const Route route(movement, n);
      for (unsigned set = 0; set < 1U << n; ++set) {
        BlockIds users;
        for (int member = 0; member < n; ++member) {
          if ((set >> member & 1) != 0) users.push_back(member);
        }
        for (int origin = 0; origin < n; ++origin) {
          EXPECT_EQ(route.reach(origin, users),
                    route.reach(origin, [&](int member) { return (set >> member & 1) != 0; }))
              << to_string(movement) << " of " << n << ", set " << set << ", origin " << origin;
        }
      }
    }
  }
}

/// No table of all pairs of blocks is made: there are 2^30 of them.
TEST(Planner, MakesOneProgramOf16384Ranks) {
  const std::int64_t tokens = std::int64_t{16'384} * 64;
  const Problem problem{.world = 16'384,
                        .heads = 8,
                        .kv_heads = 8,
                        .mask = parse_mask("causal", {tokens, tokens}),
                        .layout = parse_layout("zigzag")};
  const Planner planner(problem, parse_strategy("ring"));
  const RankProgram program = planner.program(Pass::Forward, 5000);
  // Two messages out and in and one attention for each foreign tile, and one for its own.
  const auto attends = std::count_if(program.ops.begin(), program.ops.end(),
                                     [](const Op& op) { return plan::attends(op); });
  EXPECT_EQ(attends, 16'384);
  EXPECT_EQ(planner.program(Pass::Backward, 16'383).rank, 16'383);
}

}  // namespace
}  // namespace armillary::plan
