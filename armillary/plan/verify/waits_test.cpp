// waits_test.cpp: plans that break the rule order, and the diagnostics that verify gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "armillary/plan/program/check.h"
#include "armillary/plan/testing/broken_plan.h"

namespace armillary::plan {
namespace {

TEST(VerifyOrder, StepsOfALaneDoNotDecrease) {
  expect_first_forward([](Plan& p) { ops(p, 1)[0].step = 1; },
                       {1, 1, "order", "lane 1 goes back from step 1 to 0"});
}

/// Compute has a lane, too, though its steps are only rows of the printed grid.
TEST(VerifyOrder, StepsOfTheComputeLaneDoNotDecrease) {
  expect_first_forward([](Plan& p) { ops(p, 1)[5].step = 1; },
                       {1, 6, "order", "lane 0 goes back from step 1 to 0"});
}

TEST(VerifyOrder, NoOpOfABatchConflictsWithAnother) {
  // Rank 1 sends a tile to rank 0 that arrives in the same batch.
  expect_first_forward(
      [](Plan& p) {
        const int back = add_tile_like(p, 0, 0);
        insert(p, 1, 4, {.kind = OpKind::Send, .lane = 1, .peer = 0, .views = {whole(p, 1, 3)}});
        insert(p, 0, 4, {.kind = OpKind::Recv, .lane = 1, .peer = 1, .views = {whole(p, 0, back)}});
      },
      {1, 4, "order", "conflicts with op 1 of its own batch"});
}

/// Both ranks send before they receive on lane 1, in batches of their own. Every op of the cycle is
/// named.
TEST(VerifyOrder, SendsThatWaitForEachOtherAreADeadlock) {
  Plan plan = ring_forward();
  for (const Rank rank : {0, 1}) {
    std::swap(ops(plan, rank)[1], ops(plan, rank)[2]);  // k> v> | k'< v'<
    for (int op = 2; op < 9; ++op) ++ops(plan, rank)[op].step;
  }
  EXPECT_EQ(verify(plan),
            (std::vector<Diagnostic>{
                {0, 0, "order", "deadlock: send (lane 1, step 0) waits for rank 1 op 3"},
                {1, 3, "order", "deadlock: recv (lane 1, step 1) waits for rank 1 op 0"},
                {1, 0, "order", "deadlock: send (lane 1, step 0) waits for rank 0 op 3"},
                {0, 3, "order", "deadlock: recv (lane 1, step 1) waits for rank 0 op 0"}}));
}

/// Sends V only after attending to V of the other rank: a copy of it that is made then.
void send_last(Plan& plan, Rank rank) {
  const int copy = add_tile_like(plan, rank, 1);
  Op send = ops(plan, rank)[2];
  send.views[0].tile = copy;
  insert(plan, rank, 8, send);
  insert(
      plan, rank, 8,
      {.kind = OpKind::Copy, .step = 1, .views = {whole(plan, rank, copy), whole(plan, rank, 1)}});
  drop(plan, rank, 2);
}

/// A cycle through two comm lanes, the compute lanes and slots.
TEST(VerifyOrder, RanksThatWaitForEachOtherThroughLanesAndSlotsAreADeadlock) {
  Plan plan = ring_forward();
  ops(plan, 0)[2].lane = ops(plan, 1)[3].lane = 2;  // V of rank 0
  ops(plan, 0)[3].lane = ops(plan, 1)[2].lane = 3;  // V of rank 1
  send_last(plan, 0);
  ASSERT_EQ(verify(plan), std::vector<Diagnostic>{}) << "only one waits: no cycle yet";
  send_last(plan, 1);
  EXPECT_EQ(verify(plan),
            (std::vector<Diagnostic>{
                {0, 2, "order", "deadlock: recv (lane 3, step 0) waits for rank 1 op 8"},
                {1, 8, "order", "deadlock: send (lane 3, step 0) waits for rank 1 op 7"},
                {1, 7, "order", "deadlock: copy waits for rank 1 op 6"},
                {1, 6, "order", "deadlock: attend waits for rank 1 op 2"},
                {1, 2, "order", "deadlock: recv (lane 2, step 0) waits for rank 0 op 8"},
                {0, 8, "order", "deadlock: send (lane 2, step 0) waits for rank 0 op 7"},
                {0, 7, "order", "deadlock: copy waits for rank 0 op 6"},
                {0, 6, "order", "deadlock: attend waits for rank 0 op 2"}}));
}

}  // namespace
}  // namespace armillary::plan
