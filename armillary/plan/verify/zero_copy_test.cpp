// zero_copy_test.cpp: the rule zero_copy of proofs: plans whose messages say that they need no
// copy, but do. Each plan breaks one condition of the rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "armillary/plan/operands.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/testing/broken_plan.h"

namespace armillary::plan {
namespace {

Plan zero_copy_ring(int world) {
  return lower(ring_forward(world), {Lowering::ZeroCopy});
}

/// The first diagnostic of verify, without its rank: `op rule message`.
std::string first(const Plan& plan) {
  const std::vector<Diagnostic> diagnostics = verify(plan, 1);
  return diagnostics.empty()
             ? "exact"
             : fmt::format("{} {} {}", diagnostics[0].op, diagnostics[0].rule, diagnostics[0].text);
}

TEST(VerifyZeroCopy, WhatThePassFindsIsExact) {
  for (const int world : {1, 2, 3, 5, 8}) EXPECT_EQ(first(zero_copy_ring(world)), "exact");
}

TEST(VerifyZeroCopy, NothingIsWrittenOverWhatIsLent) {
  Plan plan = zero_copy_ring(4);
  for (int i = 0; i < static_cast<int>(ops(plan, 0).size()); ++i) {
    Op& op = ops(plan, 0)[i];
    if (op.kind != OpKind::Send || op.zero_copy) continue;
    op.zero_copy = true;
    EXPECT_EQ(
        first(plan),
        fmt::format("{} zero_copy lends {}{{3}} heads 0-2, over which {}{{1}} heads 0-2 is written",
                    i, to_string(tile(plan, 0, op.views.front().tile).tensor),
                    to_string(tile(plan, 0, op.views.front().tile).tensor)));
    op.zero_copy = false;
  }
}

// Heads that are written later are not those that are lent.
TEST(VerifyZeroCopy, AnotherPartOfTheTileMayBeWritten) {
  const Plan plan = zero_copy_ring(2);
  const BlockIds blocks = plan.ranks[0].tiles[5].blocks;
  for (const Heads cleared : {Heads{1, 3}, Heads{2, 4}}) {
    Plan changed = plan;  // sends heads 0-2 of the partial output, and clears others
    ops(changed, 0)
        .push_back({.kind = OpKind::Send,
                    .lane = 9,
                    .step = 9,
                    .peer = 1,
                    .zero_copy = true,
                    .views = {{5, {0, 2}, blocks}}});
    ops(changed, 0).push_back({.kind = OpKind::Clear, .step = 99, .views = {{5, cleared, blocks}}});
    const std::string text = first(changed);
    EXPECT_EQ(
        text.find(
            "zero_copy lends partial out{0} heads 0-2, over which partial out{0} heads 1-3") !=
            std::string::npos,
        cleared.begin == 1)
        << text;
  }
}

TEST(VerifyZeroCopy, WhatIsBorrowedIsAWholeTileThatNobodyElseWrites) {
  const std::string refused =
      "1 zero_copy borrows k{1} heads 0-2, which is not a whole tile that it alone writes, beside "
      "the "
      "caller's";
  Plan twice =
      zero_copy_ring(2);  // the received K is copied away before it is attended, and back after
  RankProgram& program = twice.ranks[0];
  const int came = ops(twice, 0)[1].views.front().tile;
  const View there{came, tile(twice, 0, came).heads, tile(twice, 0, came).blocks};
  View aside = there;
  aside.tile = static_cast<int>(program.tiles.size());
  program.tiles.push_back(tile(twice, 0, came));
  program.tiles.back().slot = static_cast<int>(program.slots.size());
  program.slots.push_back(program.slots[tile(twice, 0, came).slot]);
  insert(twice, 0, 4, {.kind = OpKind::Copy, .views = {aside, there}});
  ops(twice, 0).push_back({.kind = OpKind::Copy, .step = 99, .views = {there, aside}});
  EXPECT_EQ(first(twice), refused);
  ops(twice, 0)[1].zero_copy = false;
  EXPECT_EQ(first(twice), "exact");
  Plan part = zero_copy_ring(2);
  tile(part, 0, ops(part, 0)[1].views.front().tile).heads.end = 2;
  for (Tile& each : part.ranks[0].tiles) {
    if (&each == &tile(part, 0, ops(part, 0)[1].views.front().tile)) each.blocks = {0, 1};
  }
  part.ranks[0].slots[tile(part, 0, ops(part, 0)[1].views.front().tile).slot].bytes *= 2;
  EXPECT_EQ(first(part), refused);
  ops(part, 0)[1].zero_copy = false;
  EXPECT_EQ(first(part), "exact");
}

/// A tile of rank 1 that is like tile `id` of rank 0, in a slot of its own.
View on_rank_1(Plan& plan, int id) {
  RankProgram& program = plan.ranks[1];
  program.slots.push_back({plan.ranks[0].slots[tile(plan, 0, id).slot].bytes});
  program.tiles.push_back(tile(plan, 0, id));
  program.tiles.back().slot = static_cast<int>(program.slots.size()) - 1;
  return {static_cast<int>(program.tiles.size()) - 1, tile(plan, 0, id).heads,
          tile(plan, 0, id).blocks};
}

// Rank 0 has its dq made a result by rank 1, which sends it back into the caller's tensor.
TEST(VerifyZeroCopy, WhatIsTheCallersIsNotBorrowed) {
  Plan plan = ring_backward();
  const Op copy = ops(plan, 0)[12];
  ASSERT_EQ(copy.kind, OpKind::Copy);
  const View& dst = copy.views[CopyOperand::kDst];
  const View& src = copy.views[CopyOperand::kSrc];
  ASSERT_EQ(tile(plan, 0, dst.tile).tensor, Tensor::DQ);
  const View there = on_rank_1(plan, dst.tile);
  const View sum = on_rank_1(plan, src.tile);
  drop(plan, 0, 12);
  ops(plan, 0).push_back({.kind = OpKind::Send, .lane = 8, .step = 90, .peer = 1});
  ops(plan, 0).back().views.push_back(src);
  ops(plan, 0).push_back({.kind = OpKind::Recv, .lane = 9, .step = 92, .peer = 1});
  ops(plan, 0).back().views.push_back(dst);
  ops(plan, 1).push_back({.kind = OpKind::Recv, .lane = 8, .step = 90, .peer = 0});
  ops(plan, 1).back().views.push_back(sum);
  ops(plan, 1).push_back({.kind = OpKind::Copy, .step = 91, .views = {there, sum}});
  ops(plan, 1).push_back({.kind = OpKind::Send, .lane = 9, .step = 92, .peer = 0});
  ops(plan, 1).back().views.push_back(there);
  plan = lower(std::move(plan), {Lowering::ZeroCopy});
  ASSERT_EQ(first(plan), "exact");
  ASSERT_TRUE(ops(plan, 1).back().zero_copy);
  ASSERT_FALSE(ops(plan, 0).back().zero_copy);
  ops(plan, 0).back().zero_copy = true;
  EXPECT_EQ(first(plan),
            fmt::format("{} zero_copy borrows dq{{0}} heads 0-4, which is not a whole tile "
                        "that it alone writes, beside the caller's",
                        ops(plan, 0).size() - 1));
}

/// Every receive into a tile that forward saves, marked: with `external` as it is, the rule refuses
/// it, and without, the slot.
TEST(VerifyZeroCopy, WhatForwardSavesIsNotBorrowed) {
  for (const char* strategy : {"ulysses", "attention2d:rows=2"}) {
    const Plan plan = make_plan(small_problem(4), parse_strategy(strategy), Pass::Forward);
    int marked = 0;
    for (int i = 0; i < static_cast<int>(plan.ranks[1].ops.size()); ++i) {
      const Op& op = plan.ranks[1].ops[i];
      const int came = op.views.front().tile;
      if (op.kind != OpKind::Recv || std::ranges::count(plan.ranks[1].saved, came) == 0) continue;
      Plan changed = plan;
      ops(changed, 1)[i].zero_copy = true;
      EXPECT_NE(first(changed).find("zero_copy borrows"), std::string::npos) << strategy;
      changed.ranks[1].slots[tile(changed, 1, came).slot].external = false;
      EXPECT_NE(first(changed).find("blocks slot"), std::string::npos) << strategy;
      ++marked;
    }
    EXPECT_GT(marked, 0) << strategy;
  }
}

TEST(VerifyZeroCopy, OnlyAMessageOfOneViewIsOne) {
  Plan plan = zero_copy_ring(2);
  for (Op& op : ops(plan, 0)) {
    if (op.is_comm()) continue;
    op.zero_copy = true;
    EXPECT_NE(first(plan).find("is not zero copy; one view is required"), std::string::npos);
    op.zero_copy = false;
  }
  const Problem problem = small_problem(2);
  Plan trades = lower(make_plan(problem, {.name = "ulysses"}, Pass::Backward));
  for (Op& op : ops(trades, 0)) {
    if (op.views.size() < 2 || !op.is_comm()) continue;
    op.zero_copy = true;
    EXPECT_NE(first(trades).find("zero_copy send of "), std::string::npos) << first(trades);
    return;
  }
  FAIL() << "no message of several views";
}

}  // namespace
}  // namespace armillary::plan
