// hazards_test.cpp: the ops that an op waits for within a rank, one test per rule: reads and writes
// of the same heads and blocks, and tiles that follow each other in a slot. Then what is written
// after an op, which must agree with the waits in programs of all strategies.
#include "armillary/plan/program/hazards.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/plan/testing/every_strategy.h"

namespace armillary::plan {
namespace {

using Waits = std::vector<std::vector<int>>;

/// A program of two slots with tiles of 4 heads and blocks 0 to 3: tiles 0 and 1 share slot 0, tile
/// 2 has slot 1.
class HazardsTest : public testing::Test {
 protected:
  HazardsTest() {
    program_.words = &attention_words();
    program_.slots.resize(2);
    for (const int slot : {0, 0, 1}) {
      program_.tiles.push_back(
          {.tensor = Tensor::K, .heads = {0, 4}, .blocks = {0, 1, 2, 3}, .slot = slot});
    }
  }

  static View all(int tile) { return {tile, {0, 4}, {0, 1, 2, 3}}; }
  static View heads(int tile, int begin, int end) { return {tile, {begin, end}, {0, 1, 2, 3}}; }
  static View blocks(int tile, const std::vector<int>& ids) { return {tile, {0, 4}, ids}; }

  void read(View view) { program_.ops.push_back({.kind = OpKind::Send, .views = {view}}); }
  void write(View view) { program_.ops.push_back({.kind = OpKind::Recv, .views = {view}}); }
  void copy(View to, View from) {
    program_.ops.push_back({.kind = OpKind::Copy, .views = {to, from}});
  }
  Waits waits() const { return dependencies(program_); }

  RankProgram program_;
};

TEST_F(HazardsTest, ReadAfterWrite) {
  write(all(0));
  read(all(0));
  EXPECT_EQ(waits(), (Waits{{}, {0}}));
}

TEST_F(HazardsTest, WriteAfterRead) {
  read(all(0));
  write(all(0));
  EXPECT_EQ(waits(), (Waits{{}, {0}}));
}

TEST_F(HazardsTest, WriteAfterWrite) {
  write(all(0));
  write(all(0));
  EXPECT_EQ(waits(), (Waits{{}, {0}}));
}

TEST_F(HazardsTest, ReadsDoNotWaitForReads) {
  write(all(0));
  read(all(0));
  read(blocks(0, {2}));
  read(heads(0, 1, 2));
  EXPECT_EQ(waits(), (Waits{{}, {0}, {0}, {0}}));
}

TEST_F(HazardsTest, AnUpdateReadsAndWrites) {
  program_.tiles[0] = {
      .tensor = Tensor::DK, .partial = true, .heads = {0, 4}, .blocks = {0}, .slot = 0};
  program_.tiles[2] = program_.tiles[0];
  program_.tiles[2].slot = 1;
  const View acc{0, {0, 4}, {0}};
  const View part{2, {0, 4}, {0}};
  program_.ops = {{.kind = OpKind::Clear, .views = {acc}},
                  {.kind = OpKind::Recv, .views = {part}},
                  {.kind = OpKind::Add, .views = {acc, part}},
                  {.kind = OpKind::Send, .views = {acc}},
                  {.kind = OpKind::Add, .views = {acc, part}}};
  EXPECT_EQ(waits(), (Waits{{}, {}, {0, 1}, {2}, {1, 2, 3}}));
}

TEST_F(HazardsTest, AnOpDoesNotWaitForItself) {
  copy(blocks(0, {0}), blocks(0, {0}));
  EXPECT_EQ(waits(), (Waits{{}}));
}

TEST_F(HazardsTest, DisjointHeadsDoNotWait) {
  write(heads(0, 0, 2));
  write(heads(0, 2, 4));
  read(heads(0, 0, 1));
  read(heads(0, 3, 4));
  read(heads(0, 1, 3));
  EXPECT_EQ(waits(), (Waits{{}, {}, {0}, {1}, {0, 1}}));
}

TEST_F(HazardsTest, DisjointBlocksDoNotWait) {
  write(blocks(0, {0, 2}));
  write(blocks(0, {1, 3}));
  read(blocks(0, {2}));
  read(blocks(0, {1, 3}));
  read(blocks(0, {2, 3}));
  write(blocks(0, {0}));
  EXPECT_EQ(waits(), (Waits{{}, {}, {0}, {1}, {0, 1}, {0}}));
}

TEST_F(HazardsTest, SameBlocksOfOtherHeadsDoNotWait) {
  write({0, {0, 2}, {1}});
  write({0, {2, 4}, {1}});
  write({0, {0, 2}, {2}});
  read({0, {1, 3}, {1, 2}});
  EXPECT_EQ(waits(), (Waits{{}, {}, {}, {0, 1, 2}}));
}

/// An op that waits for a write that covers an older one need not wait for the older one.
TEST_F(HazardsTest, ACoveringWriteHidesWhatWasBefore) {
  write(blocks(0, {0, 1}));
  read(blocks(0, {1}));
  write(all(0));
  read(all(0));
  write(blocks(0, {0}));
  EXPECT_EQ(waits(), (Waits{{}, {0}, {0, 1}, {2}, {2, 3}}));
}

TEST_F(HazardsTest, AWriteThatCoversInPartHidesNothing) {
  write(blocks(0, {0, 1}));
  write(blocks(0, {1, 2}));
  read(blocks(0, {1}));
  EXPECT_EQ(waits(), (Waits{{}, {0}, {0, 1}}));
}

TEST_F(HazardsTest, OtherSlotsAreIndependent) {
  write(all(0));
  write(all(2));
  read(all(0));
  read(all(2));
  EXPECT_EQ(waits(), (Waits{{}, {}, {0}, {1}}));
}

/// A tile that takes over a slot waits for all ops that touched the tile before, whatever their
/// views.
TEST_F(HazardsTest, AnotherTileInTheSlotWaitsForEveryTouch) {
  write(blocks(0, {0}));
  write(blocks(0, {1}));
  read(blocks(0, {1}));
  write(blocks(1, {3}));
  EXPECT_EQ(waits(), (Waits{{}, {}, {1}, {0, 2}})) << "1 follows from 2";
}

/// Also if the new tile arrives in parts: no part may land while the old tile is read.
TEST_F(HazardsTest, EveryPartOfTheNewTileWaitsForTheOldOne) {
  write(all(0));
  read(all(0));
  write(blocks(1, {0, 1}));
  write(blocks(1, {2, 3}));
  read(blocks(1, {2}));
  EXPECT_EQ(waits(), (Waits{{}, {0}, {1}, {1}, {3}}));
}

/// A read of a tile that another one replaced is wrong; that it waits shows it to be wrong in every
/// order of actions.
TEST_F(HazardsTest, AReadOfTheReplacedTileWaitsForTheOneThatReplacedIt) {
  write(blocks(0, {0}));
  write(blocks(1, {3}));
  read(blocks(0, {0}));
  write(blocks(1, {2}));
  EXPECT_EQ(waits(), (Waits{{}, {0}, {1}, {0, 2}}));
}

/// The same if a write covers the view of that read: views of different tiles do not compare.
TEST_F(HazardsTest, AReadOfAnotherTileIsNotHiddenByACoveringWrite) {
  write(blocks(1, {0}));
  read(blocks(0, {0}));
  write(blocks(1, {0}));
  write(blocks(1, {1}));
  EXPECT_EQ(waits(), (Waits{{}, {0}, {0, 1}, {1}}));
}

/// Tiles that the caller filled need not be written first.
TEST_F(HazardsTest, WritesNextToReadsOfAnInputDoNotWait) {
  read(blocks(2, {0}));
  write(blocks(2, {1}));
  write(blocks(2, {0}));
  EXPECT_EQ(waits(), (Waits{{}, {}, {0}}));
}

TEST_F(HazardsTest, TheFirstTileMayComeBack) {
  write(all(0));
  write(all(1));
  read(all(1));
  write(all(0));
  read(all(0));
  EXPECT_EQ(waits(), (Waits{{}, {0}, {1}, {2}, {3}}));
}

TEST_F(HazardsTest, NoOpsNoWaits) {
  EXPECT_EQ(waits(), Waits{});
}

TEST_F(HazardsTest, LaterWritesAreOfTheSameBlocksOrOfAnotherTile) {
  write(blocks(0, {1}));
  write(blocks(0, {2, 3}));
  write(blocks(2, {0}));
  LaterWrites later(program_);
  EXPECT_EQ(later.over(all(0)), nullptr) << "nothing was added";
  for (auto op = program_.ops.rbegin(); op != program_.ops.rend(); ++op) later.add(*op);
  EXPECT_EQ(later.over(blocks(0, {0})), nullptr);
  EXPECT_EQ(later.over(blocks(0, {0, 2})), &program_.ops[1].views[0]);
  EXPECT_EQ(later.over(all(0)), &program_.ops[0].views[0]) << "the next one";
  EXPECT_EQ(later.over(blocks(1, {0})), &program_.ops[0].views[0]) << "tiles 0 and 1 share a slot";
}

TEST(LaterWrites, AreThereForAReadExactlyIfAnOpWaitsForIt) {
  const Problem problem{
      .world = 8, .heads = 8, .kv_heads = 4, .mask = parse_mask("causal", {256, 256})};
  int over = 0;
  int rest = 0;
  for (const std::string& name : every_strategy(problem)) {
    for (const Pass pass : {Pass::Forward, Pass::Backward}) {
      const RankProgram program = make_plan(problem, parse_strategy(name), pass).ranks[3];
      std::vector<bool> waited_for(program.ops.size(), false);
      for (const std::vector<int>& waits : dependencies(program)) {
        for (const int earlier : waits) waited_for[earlier] = true;
      }
      LaterWrites later(program);
      for (std::size_t i = program.ops.size(); i-- > 0;) {
        const Op& op = program.ops[i];
        if (op.kind == OpKind::Send) {
          EXPECT_EQ(later.over(op.views.front()) != nullptr, waited_for[i]) << name << " op " << i;
          (waited_for[i] ? over : rest) += 1;
        }
        later.add(op);
      }
    }
  }
  EXPECT_GT(over, 100);
  EXPECT_GT(rest, 100);
}

TEST(Overlap, SharesAHeadAndABlock) {
  const View view{0, {2, 4}, {1, 3, 5}};
  EXPECT_TRUE(overlap(view, view));
  EXPECT_TRUE(overlap(view, {0, {3, 8}, {0, 5, 6}}));
  EXPECT_TRUE(overlap(view, {0, {0, 3}, {1}}));
  EXPECT_FALSE(overlap(view, {0, {4, 8}, {1, 3, 5}})) << "heads only touch";
  EXPECT_FALSE(overlap(view, {0, {0, 2}, {1, 3, 5}})) << "heads only touch";
  EXPECT_FALSE(overlap(view, {0, {2, 4}, {0, 2, 4, 6}}));
  EXPECT_FALSE(overlap(view, {0, {2, 4}, {}}));
}

}  // namespace
}  // namespace armillary::plan
