// symbols_test.cpp: plans that break the rules undefined, twice, partial and complete, and the
// diagnostics that verify gives.
#include "armillary/plan/verify/symbols.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "armillary/plan/operands.h"
#include "armillary/plan/testing/broken_plan.h"

namespace armillary::plan {
namespace {

TEST(VerifyUndefined, NothingIsReadThatWasNotWritten) {
  expect_first_forward(
      [](Plan& p) {
        drop(p, 0, 3);
        drop(p, 1, 2);
      },
      {0, 6, "undefined", "v{1} heads 0-2 is not there, or not all of it"});
  expect_first_forward(
      [](Plan& p) { drop(p, 1, 4); },
      {1, 5, "undefined", "partial out{1} heads 0-4 is not there, or not all of it"});
  expect_first_forward(
      [](Plan& p) {
        ops(p, 1)[4].views[ClearOperand::kDst].heads = {0, 3};
      },
      {1, 6, "undefined", "partial out{1} heads 0-4 is not there, or not all of it"});
  expect_first(ring_backward(), [](Plan& p) { drop(p, 0, 4); },
               {0, 7, "undefined", "delta{0} heads 0-4 is not there, or not all of it"});
}

/// Tile 3 (k') of rank 0 in the slot of another K.
void put_in_one_slot(Plan& plan, int before) {
  const int other = add_tile_like(plan, 0, 0);
  tile(plan, 0, other).slot = tile(plan, 0, 3).slot;
  insert(plan, 0, before,
         {.kind = OpKind::Copy, .step = 1, .views = {whole(plan, 0, other), whole(plan, 0, 0)}});
}

TEST(VerifyUndefined, AnotherTileInTheSlotReplacesTheOneBefore) {
  Plan good = ring_forward();
  put_in_one_slot(good, 8);
  EXPECT_EQ(verify(good), std::vector<Diagnostic>{}) << "after its last use";
  expect_first_forward([](Plan& p) { put_in_one_slot(p, 7); },
                       {0, 8, "undefined", "k{1} heads 0-2 is not there, or not all of it"});
}

/// Rank 2 passes K of rank 1 on after it has put another tile in its slot, on a lane of its own:
/// the message could be early and look right. The read must wait for what stands before it.
TEST(VerifyUndefined, AlsoWhereLanesCouldRunAhead) {
  const auto pass_on_late = [](Plan& p, bool replaced) {
    std::vector<Op>& mine = ops(p, 2);
    const auto is_k_of = [&](const Op& op, OpKind kind, Rank rank, int block) {
      const Tile& moved = p.ranks[rank].tiles[op.views.front().tile];
      return op.kind == kind && moved.tensor == Tensor::K &&
             op.views.front().blocks.front() == block;
    };
    const auto send = std::find_if(mine.begin(), mine.end(),
                                   [&](const Op& op) { return is_k_of(op, OpKind::Send, 2, 1); });
    Op late = *send;
    mine.erase(send);
    late.lane = 2;
    for (Op& op : ops(p, 0)) {
      if (is_k_of(op, OpKind::Recv, 0, 1)) op.lane = 2;
    }
    if (replaced) {
      const int other = add_tile_like(p, 2, 0);
      tile(p, 2, other).slot = tile(p, 2, late.views.front().tile).slot;
      mine.push_back(
          {.kind = OpKind::Copy, .step = 2, .views = {whole(p, 2, other), whole(p, 2, 0)}});
    }
    mine.push_back(late);
  };
  Plan good = ring_forward(3);
  pass_on_late(good, false);
  ASSERT_EQ(verify(good), std::vector<Diagnostic>{});
  Plan broken = ring_forward(3);
  pass_on_late(broken, true);
  const std::vector<Diagnostic> diagnostics = verify(broken);
  ASSERT_FALSE(diagnostics.empty());
  EXPECT_EQ(diagnostics[0].rank, 2);
  EXPECT_EQ(diagnostics[0].rule, "undefined");
  EXPECT_EQ(diagnostics[0].text, "k{1} heads 0-2 is not there, or not all of it");
}

TEST(VerifyTwice, NoPairIsCountedTwice) {
  expect_first_forward([](Plan& p) { repeat(p, 0, 7); },
                       {0, 8, "twice", "query block 0 and key block 1 are counted twice"});
  expect_first(ring_backward(), [](Plan& p) { repeat(p, 1, 8); },
               {1, 9, "twice", "query block 1 and key block 1 are counted twice"});
}

TEST(VerifyTwice, NoPartialIsMergedWithItself) {
  expect_first_forward(
      [](Plan& p) {
        const int out = add_tile_like(p, 0, 5);
        const int lse = add_tile_like(p, 0, 6);
        insert(p, 0, 8,
               {.kind = OpKind::Merge,
                .step = 1,
                .views = {whole(p, 0, 5), whole(p, 0, 6), whole(p, 0, out), whole(p, 0, lse)}});
        for (const auto& [to, from] : {std::pair(lse, 6), std::pair(out, 5)}) {
          insert(p, 0, 7, {.kind = OpKind::Copy, .views = {whole(p, 0, to), whole(p, 0, from)}});
        }
      },
      {0, 10, "twice", "partial out{0} heads 0-4 and partial out{0} heads 0-4 share a pair"});
  expect_first(
      ring_backward(), [](Plan& p) { repeat(p, 0, 17); },
      {0, 18, "twice", "partial dk{0} heads 0-2 and partial dk{0} heads 0-2 share a pair"});
}

TEST(VerifyPartial, OnlyPartialsAreAccumulated) {
  expect_first_forward(
      [](Plan& p) {
        insert(p, 1, 9, {.kind = OpKind::Clear, .step = 1, .views = {whole(p, 1, 7)}});
      },
      {1, 9, "partial", "out{1} heads 0-4 is final and cannot be cleared"});
  expect_first(ring_backward(),
               [](Plan& p) {
                 insert(p, 0, 21, ops(p, 0)[17]);
                 ops(p, 0)[21].step = ops(p, 0)[20].step;
                 ops(p, 0)[21].views[AddOperand::kAcc].tile = 17;
               },
               {0, 21, "partial",
                "dk{0} heads 0-2 and partial dk{0} heads 0-2 must both be partial to be summed"});
}

TEST(VerifyPartial, OutAndLseSumOverTheSame) {
  expect_first_forward(
      [](Plan& p) { insert(p, 0, 7, {.kind = OpKind::Clear, .views = {whole(p, 0, 6)}}); },
      {0, 8, "partial",
       "partial out{0} heads 0-4 and partial lse{0} heads 0-4 are over different pairs"});
}

TEST(VerifyPartial, FinishedOutAndLseSumOverTheSame) {
  expect_first_forward(
      [](Plan& p) {
        insert(p, 0, 8, {.kind = OpKind::Clear, .step = 1, .views = {whole(p, 0, 6)}});
      },
      {0, 9, "partial",
       "partial out{0} heads 0-4 and partial lse{0} heads 0-4 are over different pairs"});
}

/// Rank 0 attends to the keys of rank 1 in partials of their own, and merges the two.
struct MergedPlan {
  MergedPlan() {
    part_out = add_tile_like(plan, 0, 5);
    part_lse = add_tile_like(plan, 0, 6);
    ops(plan, 0)[7].views[AttendOperand::kOut] = whole(plan, 0, part_out);
    ops(plan, 0)[7].views[AttendOperand::kLse] = whole(plan, 0, part_lse);
    insert(plan, 0, 8,
           {.kind = OpKind::Merge,
            .step = 1,
            .views = {whole(plan, 0, 5), whole(plan, 0, 6), whole(plan, 0, part_out),
                      whole(plan, 0, part_lse)}});
    for (const int id : {part_lse, part_out}) {
      insert(plan, 0, 4, {.kind = OpKind::Clear, .views = {whole(plan, 0, id)}});
    }
  }
  static constexpr int kMerge = 10;
  Plan plan = ring_forward();
  int part_out = -1;
  int part_lse = -1;
};

TEST(VerifyPartial, MergedOutAndLseSumOverTheSame) {
  const auto expect_error = [](const Breakage& kind, int op) {
    const std::string out = "partial out{0} heads 0-4";
    const std::string lse = "partial lse{0} heads 0-4";
    expect_first(MergedPlan().plan, kind,
                 {0, op, "partial", out + " and " + lse + " are over different pairs"});
  };
  const MergedPlan good;
  // The part that is merged, then the result that it is merged into, with a cleared lse.
  expect_error(
      [&](Plan& p) {
        const View lse = whole(p, 0, good.part_lse);
        insert(p, 0, MergedPlan::kMerge, {.kind = OpKind::Clear, .step = 1, .views = {lse}});
      },
      MergedPlan::kMerge + 1);
  expect_error(
      [](Plan& p) {
        const View lse = whole(p, 0, 6);
        insert(p, 0, MergedPlan::kMerge, {.kind = OpKind::Clear, .step = 1, .views = {lse}});
      },
      MergedPlan::kMerge + 1);
  // Each out with the lse of the other: both are over all pairs after the merge, and it is wrong.
  expect_error(
      [&](Plan& p) {
        Views& merged = ops(p, 0)[MergedPlan::kMerge].views;
        std::swap(merged[MergeOperand::kLse], merged[MergeOperand::kPartLse]);
        ops(p, 0)[MergedPlan::kMerge + 1].views[FinishOperand::kPartLse] =
            whole(p, 0, good.part_lse);
      },
      MergedPlan::kMerge);
}

/// A sum is rounded to the input dtype once, when it is complete: not after half of the pairs, and
/// not by passing through a final tile.
TEST(VerifyPartial, RoundingEarlyIsCaught) {
  expect_first(ring_backward(),
               [](Plan& p) {
                 std::swap(ops(p, 0)[18], ops(p, 0)[19]);
                 std::swap(ops(p, 0)[17], ops(p, 0)[18]);
               },
               {0, 17, "complete", "partial dk{0} heads 0-2 lacks query block 1"});
  expect_first(
      ring_backward(),
      [](Plan& p) {
        insert(p, 0, 21,
               {.kind = OpKind::Copy,
                .step = ops(p, 0)[20].step,
                .views = {whole(p, 0, 10), whole(p, 0, 17)}});
      },
      {0, 21, "partial", "dk{0} heads 0-2 cannot become partial dk{0} heads 0-2 by a copy"});
}

TEST(VerifyPartial, AResultIsFinishedAndNotCopied) {
  expect_first_forward(
      [](Plan& p) {
        ops(p, 0)[8] = {.kind = OpKind::Copy, .step = 1, .views = {whole(p, 0, 7), whole(p, 0, 5)}};
      },
      {0, 8, "partial", "partial out{0} heads 0-4 cannot become out{0} heads 0-4 by a copy"});
}

TEST(VerifyComplete, EveryVisiblePairIsCounted) {
  expect_first_forward([](Plan& p) { drop(p, 1, 7); },
                       {1, 7, "complete", "partial out{1} heads 0-4 lacks key block 0"});
  expect_first(ring_backward(), [](Plan& p) { drop(p, 0, 18); },
               {0, 19, "complete", "partial dv{0} heads 0-2 lacks query block 1"});
}

TEST(VerifyComplete, ForEveryHead) {
  expect_first_forward(
      [](Plan& p) {
        for (View& view : ops(p, 0)[7].views) {
          view.heads = {0, is_kv(tile(p, 0, view.tile).tensor) ? 1 : 2};
        }
      },
      {0, 8, "complete", "partial out{0} heads 0-4 lacks key block 1"});
  expect_first(ring_backward(),
               [](Plan& p) {
                 for (View& view : ops(p, 0)[11].views) {
                   view.heads = {0, is_kv(tile(p, 0, view.tile).tensor) ? 1 : 2};
                 }
               },
               {0, 12, "complete", "partial dq{0} heads 0-4 lacks key block 1"});
}

/// Query heads of one KV head may be attended one by one, in any order: each counts for itself.
TEST(VerifyComplete, HeadsOfAGroupAreCountedOneByOne) {
  Plan plan = ring_backward();
  const Op whole_op = ops(plan, 0)[8];
  drop(plan, 0, 8);
  const std::pair<Heads, Heads> parts[] = {{{1, 2}, {0, 1}}, {{0, 1}, {0, 1}}, {{2, 4}, {1, 2}}};
  int at = 8;
  for (const auto& [q_heads, kv_heads] : parts) {
    Op part = whole_op;
    for (View& view : part.views) {
      view.heads = is_kv(tile(plan, 0, view.tile).tensor) ? kv_heads : q_heads;
    }
    insert(plan, 0, at++, part);
  }
  EXPECT_EQ(verify(plan), std::vector<Diagnostic>{});
  drop(plan, 0, 9);
  EXPECT_FALSE(verify(plan).empty()) << "without query head 0";
}

TEST(VerifyComplete, EveryResultIsWholeAtTheEnd) {
  expect_first_forward([](Plan& p) { drop(p, 1, 8); },
                       {1, -1, "complete", "out{1} heads 0-4 is not whole at the end"});
  expect_first(ring_backward(), [](Plan& p) { drop(p, 0, 20); },
               {0, -1, "complete", "dv{0} heads 0-2 is not whole at the end"});
  // Saved tiles must last to the end, too.
  expect_first_forward(
      [](Plan& p) {
        const int other = add_tile_like(p, 0, 6);
        tile(p, 0, other).slot = tile(p, 0, 8).slot;
        insert(p, 0, 9, {.kind = OpKind::Clear, .step = 1, .views = {whole(p, 0, other)}});
      },
      {0, -1, "complete", "lse{0} heads 0-4 is not whole at the end"});
}

}  // namespace
}  // namespace armillary::plan
