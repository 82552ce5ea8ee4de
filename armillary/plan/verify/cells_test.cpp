// cells_test.cpp: classes of blocks and heads, and the state of their cells: what no view tells
// apart is one cell, and a cell counts each contribution once.
#include "armillary/plan/verify/cells.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "armillary/plan/testing/broken_plan.h"

namespace armillary::plan::verifier {
namespace {

TEST(VerifyClasses, LieBetweenNeighbouringBorders) {
  const Classes classes({0, 0, 1, 0, 1, 0});  // of 5 numbers: {0, 1} {2, 3} {4}
  EXPECT_EQ(classes.count(), 3);
  EXPECT_EQ(classes.begin(1), 2);
  EXPECT_EQ(classes.end(1), 4);
  const ClassRange blocks = classes.within(IdRun{2, 4});
  EXPECT_EQ(std::pair(blocks.begin, blocks.end), std::pair(1, 3));
  const ClassRange heads = classes.sharing(Heads{1, 3});
  EXPECT_EQ(std::pair(heads.begin, heads.end), std::pair(0, 2));
}

/// 16 blocks a rank, of which the views of a causal plan tell few apart. One more view splits them.
TEST(VerifyClasses, AreOfWhatNoViewTellsApart) {
  Problem problem = small_problem(4);
  problem.mask = causal_mask({1024, 1024}, Align::Start);
  problem.layout = parse_layout("balanced");
  Plan plan = make_plan(problem, parse_strategy("allgather"), Pass::Forward);
  ASSERT_GT(plan.blocks.kv.size(), 32u);
  const int before = sides_of(plan).kv.blocks.count();
  EXPECT_LT(before, static_cast<int>(plan.blocks.kv.size()));
  const auto wide = std::find_if(ops(plan, 0).begin(), ops(plan, 0).end(), [&](const Op& op) {
    const Tile& moved = tile(plan, 0, op.views.front().tile);
    const BlockIds& blocks = op.views.front().blocks;
    return op.kind == OpKind::Send && is_kv(moved.tensor) && blocks.size() > 3 &&
           sides_of(plan).kv.blocks.within(IdRun{blocks.front(), blocks.back()}).count() == 1;
  });
  ASSERT_NE(wide, ops(plan, 0).end());
  const int first = wide->views.front().blocks.front();
  wide->views[0].blocks = {first, first + 2};
  EXPECT_EQ(sides_of(plan).kv.blocks.count(), before + 3);
}

/// A tile of blocks 0-1 and 4-6 in heads 0-4; views cut it into single blocks and pairs of heads.
struct OneTile {
  OneTile() {
    program.words = &attention_words();
    program.slots = {{}, {}};
    for (const int slot : {0, 0, 1}) {
      program.tiles.push_back({.tensor = Tensor::DK,
                               .partial = true,
                               .heads = {0, 4},
                               .blocks = {0, 1, 4, 5, 6},
                               .slot = slot});
    }
  }
  RankProgram program;
  Sides sides{.q = {Classes({1, 1}), Classes({1, 1})},
              .kv = {Classes({1, 0, 1, 0, 1}), Classes({1, 1, 1, 0, 1, 1, 1, 1})}};
};

TEST(VerifyCells, AreThoseOfTheViewAlone) {
  const OneTile one;
  Cells cells(one.program, one.sides);
  const View whole{.tile = 0, .heads = {0, 4}, .blocks = {0, 1, 4, 5, 6}};
  EXPECT_TRUE(cells.read(whole).empty() && !cells.has(whole)) << "nothing was written";
  std::vector<int> marks;
  for (const BlockIds& blocks : {BlockIds{1, 5, 6}, BlockIds{0, 4}}) {
    for (const Heads& heads : {Heads{0, 2}, Heads{2, 4}}) {
      const View part{.tile = 0, .heads = heads, .blocks = blocks};
      EXPECT_FALSE(cells.read(part).all_defined() || cells.has(part));
      const ViewCells written = cells.write(part);
      written.define();
      for (const ViewCells::Cell& cell : written) marks.push_back(cell.cell);
      EXPECT_TRUE(cells.read(part).all_defined() && cells.has(part));
    }
  }
  std::sort(marks.begin(), marks.end());
  EXPECT_EQ(marks, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_TRUE(cells.read(whole).all_defined() && cells.has(whole));
}

TEST(VerifyCells, OfNoHeadsThereAreNone) {
  OneTile one;
  one.program.tiles[2].heads = {0, 0};
  Cells cells(one.program, one.sides);
  cells.define(2);
  const View view{.tile = 2, .heads = {0, 0}, .blocks = {0, 1}};
  EXPECT_TRUE(cells.read(view).empty() && !cells.has(view));
}

TEST(VerifyCells, AnotherTileOfTheSlotReplacesThem) {
  const OneTile one;
  Cells cells(one.program, one.sides);
  cells.define(0);
  cells.write({.tile = 1, .heads = {0, 4}, .blocks = {0}}).define();
  EXPECT_TRUE(cells.read({.tile = 0, .heads = {0, 4}, .blocks = {0}}).empty());
  EXPECT_FALSE(cells.has({.tile = 0, .heads = {0, 4}, .blocks = {0}}));
  EXPECT_TRUE(cells.read({.tile = 1, .heads = {0, 4}, .blocks = {0}}).all_defined());
  EXPECT_FALSE(cells.read({.tile = 1, .heads = {0, 4}, .blocks = {0, 1}}).all_defined());
}

TEST(VerifyCells, ACopyCountsWhatItsSourceDoes) {
  const OneTile one;
  Cells cells(one.program, one.sides);
  cells.define(0);
  cells.define(2);
  const View from{.tile = 0, .heads = {2, 4}, .blocks = {5, 6}};
  const View to{.tile = 2, .heads = {2, 4}, .blocks = {5, 6}};
  const ViewCells source = cells.read(from);
  for (const ViewCells::Cell& cell : source) {
    const Bits block{std::uint64_t{1} << cell.block_class};
    EXPECT_EQ(source.contributions().add(cell.cell, 0, block, {0, 64}), -1);
  }
  const ViewCells target = cells.write(to);
  target.copy(source);
  for (const ViewCells::Cell& cell : target) {
    EXPECT_EQ(target.contributions().missing(cell.cell, 0, {~std::uint64_t{0}}),
              cell.block_class == 0 ? 1 : 0);
    EXPECT_TRUE(target.contributions().equal(cell.cell, source.contributions(), cell.cell));
    EXPECT_EQ(target.contributions().missing(cell.cell, 0, {std::uint64_t{1} << cell.block_class}),
              -1);
  }
}

TEST(VerifyCounted, SaysWhatWasCountedBefore) {
  Contributions contributions;
  contributions.reset(2, 2);
  const ClassRange all{0, 128};
  EXPECT_EQ(contributions.missing(0, 0, {0, 4}), 66);
  EXPECT_EQ(contributions.add(0, 0, {0, 4}, all), -1);
  EXPECT_EQ(contributions.missing(0, 0, {0, 4}), -1);
  EXPECT_EQ(contributions.missing(0, 1, {0, 4}), 66) << "another reader";
  EXPECT_EQ(contributions.missing(1, 0, {0, 4}), 66) << "another cell";
  EXPECT_EQ(contributions.add(0, 0, {1, 12}, all), 66);
  EXPECT_EQ(contributions.add(0, 1, {1, 12}, all), -1) << "another reader";
}

TEST(VerifyCounted, AddsWhatIsSeenOfARange) {
  const Bits bits{~std::uint64_t{0}, ~std::uint64_t{0}, ~std::uint64_t{0}};
  for (const ClassRange range : {ClassRange{0, 1}, ClassRange{3, 64}, ClassRange{63, 65},
                                 ClassRange{64, 128}, ClassRange{5, 192}, ClassRange{191, 192}}) {
    Contributions contributions;
    contributions.reset(1, 3);
    EXPECT_EQ(contributions.add(0, 0, bits, range), -1);
    for (int block = 0; block < 192; ++block) {
      Bits one(3);
      put(one, block);
      const bool inside = range.begin <= block && block < range.end;
      EXPECT_EQ(contributions.missing(0, 0, one), inside ? -1 : block)
          << block << " of " << range.begin << " .. " << range.end;
    }
    EXPECT_EQ(contributions.add(0, 0, bits, range), range.begin) << "it is there already";
  }
}

TEST(VerifyCounted, SumsAreOfWhatNeitherSharesWithTheOther) {
  Contributions a;
  Contributions b;
  a.reset(1, 1);
  b.reset(1, 1);
  EXPECT_TRUE(a.equal(0, b, 0));
  b.add(0, 3, {6}, {0, 64});
  EXPECT_FALSE(a.equal(0, b, 0));
  EXPECT_TRUE(a.add(0, b, 0));
  EXPECT_TRUE(a.equal(0, b, 0));
  EXPECT_FALSE(a.add(0, b, 0)) << "it is there already";
  a.clear(0);
  b.clear(0);
  EXPECT_TRUE(a.equal(0, b, 0));
  Contributions never;
  never.reset(1, 1);
  EXPECT_TRUE(b.equal(0, never, 0)) << "no reader, or one that contributed nothing";
}

TEST(VerifyCounted, ACopyAndAnotherTileForgetWhatWasCounted) {
  Contributions contributions;
  Contributions never;
  contributions.reset(1, 1);
  never.reset(1, 1);
  contributions.add(0, 2, {6}, {0, 64});
  contributions.copy(0, never, 0);
  EXPECT_EQ(contributions.missing(0, 2, {6}), 1) << "a copy of a cell that counts nothing";
  contributions.add(0, 2, {6}, {0, 64});
  contributions.reset(3, 1);
  for (const int cell : {0, 1, 2}) {
    EXPECT_EQ(contributions.missing(cell, 2, {6}), 1) << "cell " << cell << " of another tile";
  }
}

}  // namespace
}  // namespace armillary::plan::verifier
