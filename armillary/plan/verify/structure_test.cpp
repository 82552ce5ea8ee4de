// structure_test.cpp: plans that break the rules blocks, well_formed and match, and the diagnostics
// that verify gives.
#include "armillary/plan/verify/structure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "armillary/plan/operands.h"
#include "armillary/plan/testing/broken_plan.h"

namespace armillary::plan {
namespace {

void expect_blocks(const Breakage& kind, const std::string& text) {
  expect_first_forward(kind, {-1, -1, "blocks", text});
}

TEST(VerifyBlocks, PartitionTheTokens) {
  expect_blocks([](Plan& p) { p.blocks.q.pop_back(); }, "query blocks hold 4 tokens of 8");
  expect_blocks([](Plan& p) { p.blocks.kv[1].runs[0].count = 3; }, "key blocks hold 7 tokens of 8");
  expect_blocks(
      [](Plan& p) {
        p.blocks.kv[1].runs[0] = run_of({3, 7});
      },
      "key blocks 0 and 1 share tokens");
  expect_blocks(
      [](Plan& p) {
        p.blocks.q[1].runs.push_back(run_of({5, 6}));
      },
      "query blocks 1 and 1 share tokens");
  expect_blocks([](Plan& p) { p.blocks.q[0].owner = 2; }, "query block 0 has owner 2 of 2");
  expect_blocks([](Plan& p) { p.blocks.q[1].owner = -1; }, "query block 1 has owner -1 of 2");
}

TEST(VerifyBlocks, HaveRunsWithinTheTokens) {
  const auto refused = [](const plan::Run& run) {
    expect_blocks(
        [&](Plan& p) { p.blocks.kv[1].runs[0] = run; },
        fmt::format("key block 1 has the run begin {} count {} step {} width {}, which is "
                    "none within 8 tokens",
                    run.begin, run.count, run.step, run.width));
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  refused({.begin = 4, .count = 5});
  refused({.begin = -4, .count = 4});
  refused({.begin = 4, .count = 0});
  refused({.begin = 4, .count = -1});
  refused({.begin = 4, .count = 2, .step = 2, .width = 3});
  refused({.begin = 4, .count = 2, .step = 0, .width = 0});
  refused({.begin = kMost, .count = 1});
  refused({.begin = 1, .count = kMost, .step = kMost, .width = 1});
  refused({.begin = 1, .count = 1, .step = 1, .width = kMost});
}

/// The step of a single stripe has no meaning.
TEST(VerifyBlocks, MayListAnIntervalAsOneWideStripe) {
  Plan plan = ring_forward();
  plan.blocks.kv[1].runs = {{.begin = 4, .count = 1, .step = 1, .width = 2},
                            {.begin = 6, .count = 1, .step = 1, .width = 2}};
  EXPECT_EQ(verify(plan), std::vector<Diagnostic>{});
}

void expect_form(const Breakage& kind, Rank rank, int op, const std::string& text) {
  expect_first_forward(kind, {rank, op, "well_formed", text});
}

TEST(VerifyForm, OneProgramPerRank) {
  expect_form([](Plan& p) { p.ranks.pop_back(); }, -1, -1, "1 programs for a world of 2");
  expect_form([](Plan& p) { p.ranks[1].rank = 0; }, 1, -1,
              "the program at place 1 says it is rank 0");
}

TEST(VerifyForm, TilesLieInSlotsThatHoldThem) {
  expect_form([](Plan& p) { tile(p, 1, 3).slot = 9; }, 1, -1, "tile 3 lies in slot 9 of 9");
  expect_form([](Plan& p) { tile(p, 1, 3).slot = -1; }, 1, -1, "tile 3 lies in slot -1 of 9");
  expect_form([](Plan& p) { p.ranks[0].slots[4].bytes = 63; }, 0, -1,
              "tile 3 of 64 bytes does not fit its slot of 63");
  expect_form([](Plan& p) { p.ranks[0].slots[4].bytes = -1; }, 0, -1, "slot 4 has -1 bytes");
  expect_form(
      [](Plan& p) {
        p.ranks[1].slots[4].bytes = p.ranks[1].slots[5].bytes =
            std::numeric_limits<std::int64_t>::max();
      },
      1, -1, "slot 4 has 9223372036854775807 bytes");
}

TEST(VerifyForm, TilesHoldHeadsAndBlocksThatExist) {
  expect_form([](Plan& p) { tile(p, 0, 3).heads = {0, 3}; }, 0, -1, "tile 3 has heads 0-3 of 2");
  expect_form([](Plan& p) { tile(p, 0, 2).heads = {-1, 4}; }, 0, -1, "tile 2 has heads -1-4 of 4");
  expect_form([](Plan& p) { tile(p, 0, 2).heads = {3, 2}; }, 0, -1, "tile 2 has heads 3-2 of 4");
  for (const std::vector<int>& blocks : {std::vector<int>{1, 0}, {0, 0}, {-1}, {2}}) {
    expect_form([&](Plan& p) { tile(p, 0, 3).blocks = blocks; }, 0, -1,
                "tile 3 lists blocks that do not ascend below 2");
  }
  expect_form([](Plan& p) { tile(p, 0, 3).partial = true; }, 0, -1, "tile 3: k cannot be partial");
}

TEST(VerifyForm, RolesNameTiles) {
  expect_form([](Plan& p) { p.ranks[1].inputs[0] = 9; }, 1, -1, "no tile 9");
  expect_form([](Plan& p) { p.ranks[1].outputs[0] = -1; }, 1, -1, "no tile -1");
  expect_form([](Plan& p) { p.ranks[1].saved[4] = 99; }, 1, -1, "no tile 99");
}

TEST(VerifyForm, ViewsLieInTheirTiles) {
  const auto outside = [](const View& view, const std::string& name) {
    expect_form([&](Plan& p) { ops(p, 0)[0].views[0] = view; }, 0, 0,
                "the view " + name + " is empty or not inside its tile");
  };
  outside({0, {0, 2}, {1}}, "k{1} heads 0-2");
  outside({0, {0, 3}, {0}}, "k{0} heads 0-3");
  outside({0, {1, 1}, {0}}, "k{0} heads 1-1");
  outside({0, {0, 2}, {}}, "k{} heads 0-2");
  outside({0, {0, 2}, {0, 0}}, "k{0,0} heads 0-2");
  outside({0, {-2147483647, 2147483647}, {0}}, "k{0} heads -2147483647-2147483647");
  expect_form([](Plan& p) { ops(p, 0)[0].views[0].tile = 9; }, 0, 0, "no tile 9");
  expect_form([](Plan& p) { ops(p, 0)[6].views.pop_back(); }, 0, 6,
              "attend with 4 operands; it takes 5");
}

TEST(VerifyForm, MessagesGoToOtherRanksOnCommLanes) {
  expect_form([](Plan& p) { ops(p, 0)[0].lane = kCompute; }, 0, 0, "send on the compute lane");
  for (const Rank peer : {0, 2, -1}) {
    expect_form([&](Plan& p) { ops(p, 0)[1].peer = peer; }, 0, 1,
                fmt::format("recv with peer {}; peers are the other ranks below 2", peer));
  }
  expect_form([](Plan& p) { ops(p, 1)[6].lane = 3; }, 1, 6, "attend on comm lane 3");
}

void swap_q_and_k(Op& attend) {
  std::swap(attend.views[AttendOperand::kQ], attend.views[AttendOperand::kK]);
}

TEST(VerifyForm, OperandsAreWhatTheOpTakes) {
  expect_form([](Plan& p) { swap_q_and_k(ops(p, 0)[6]); }, 0, 6, "operand q is k; it must be q");
  expect_form([](Plan& p) { ops(p, 0)[6].views[AttendOperand::kOut].tile = 7; }, 0, 6,
              "operand out is out; it must be partial out");
  expect_form([](Plan& p) { ops(p, 0)[8].views[FinishOperand::kPartOut].tile = 7; }, 0, 8,
              "operand part_out is out; it must be partial out");
  expect_form(
      [](Plan& p) {
        ops(p, 0)[6].views[AttendOperand::kOut].heads = {0, 2};
      },
      0, 6, "q{0} heads 0-4 and partial out{0} heads 0-2 differ in blocks or heads");
  expect_form(
      [](Plan& p) {
        ops(p, 0)[7].views[AttendOperand::kV] = {1, {0, 2}, {0}};
      },
      0, 7, "k{1} heads 0-2 and v{0} heads 0-2 differ in blocks or heads");
  expect_form(
      [](Plan& p) {
        Views& views = ops(p, 0)[6].views;
        views[AttendOperand::kK].heads = views[AttendOperand::kV].heads = {0, 1};
      },
      0, 6, "k{0} heads 0-1 does not hold the KV heads of q{0} heads 0-4");
  expect_first(
      ring_backward(), [](Plan& p) { ops(p, 0)[17].views[AddOperand::kPart].tile = 15; },
      {0, 17, "well_formed", "add of partial dk{0} heads 0-2 and partial dv{0} heads 0-2"});
}

TEST(VerifyForm, StepsCountFromZero) {
  expect_form([](Plan& p) { ops(p, 0)[0].step = -1; }, 0, 0, "send in step -1; steps count from 0");
}

/// A plan whose sums travel in the input dtype.
Plan narrow_plan(const std::string& strategy, Pass pass) {
  Problem problem = small_problem(2);
  problem.dtype = Dtype::Bf16;
  problem.transfer_dtype = TransferDtype::Input;
  return make_plan(problem, parse_strategy(strategy), pass);
}

TEST(VerifyForm, OnlySumsThatTravelAreNarrow) {
  expect_first(ring_backward(), [](Plan& p) { tile(p, 0, 10).narrow = true; },
               {0, -1, "well_formed", "tile 10: dk cannot be narrow"});
  const auto refused = [](int id, const std::string& text) {
    expect_first(narrow_plan("ring", Pass::Forward), [&](Plan& p) { tile(p, 0, id).narrow = true; },
                 {0, -1, "well_formed", text});
  };
  refused(0, "tile 0: k cannot be narrow");
  refused(6, "tile 6: lse cannot be narrow");
}

TEST(VerifyForm, NarrowSumsAreAddedToWideOnes) {
  const Plan plan = narrow_plan("ring", Pass::Backward);
  const std::vector<Op>& mine = plan.ranks[0].ops;
  const auto sum =
      std::find_if(mine.begin(), mine.end(), [](const Op& op) { return op.kind == OpKind::Add; });
  ASSERT_NE(sum, mine.end());
  const int i = static_cast<int>(sum - mine.begin());
  const auto refused = [&](const Breakage& kind, const std::string& operand) {
    expect_first(
        plan, kind,
        {0, i, "well_formed", "operand " + operand + " is narrow; it must be in the accumulator"});
  };
  const auto swap_operands = [&](Plan& p) {
    Views& views = ops(p, 0)[i].views;
    std::swap(views[AddOperand::kAcc], views[AddOperand::kPart]);
  };
  refused(swap_operands, "acc");
  refused([&](Plan& p) { ops(p, 0)[i].kind = OpKind::Copy; }, "src");
}

TEST(VerifyForm, NoOpWritesWhereItReads) {
  expect_form(
      [](Plan& p) {
        tile(p, 0, 5).slot = tile(p, 0, 2).slot;
        p.ranks[0].slots[tile(p, 0, 2).slot].bytes *= 2;
      },
      0, 6, "operands out and q share slot 2");
  expect_first(ring_backward(), [](Plan& p) { ops(p, 1)[17].views[AddOperand::kPart].tile = 10; },
               {1, 17, "well_formed", "operands acc and part share slot 13"});
}

TEST(VerifyBlocks, TilesOfTheCallerLieOnTheirOwners) {
  expect_first_forward([](Plan& p) { p.ranks[1].inputs.pop_back(); },
                       {1, -1, "blocks", "inputs are not the 3 tensors of this pass"});
  expect_first_forward([](Plan& p) { p.ranks[0].outputs.clear(); },
                       {0, -1, "blocks", "outputs are not the 1 tensors of this pass"});
  expect_first_forward([](Plan& p) { p.problem.return_lse = true; },
                       {0, -1, "blocks", "outputs are not the 2 tensors of this pass"});
  expect_first_forward([](Plan& p) { p.ranks[0].saved.pop_back(); },
                       {0, -1, "blocks", "saved tiles are not q, k, v, out and lse"});
  expect_first_forward([](Plan& p) { p.ranks[0].saved[3] = 5; },
                       {0, -1, "blocks", "saved out is partial"});
  expect_first_forward(
      [](Plan& p) {
        const int half = add_tile_like(p, 0, 7);
        tile(p, 0, half).heads = {0, 2};
        p.ranks[0].outputs = {half};
      },
      {0, -1, "blocks", "outputs: out is not all heads of the rank's own blocks"});
}

/// A sum is not a result, however complete.
TEST(VerifyBlocks, ResultsAreFinal) {
  expect_first(ring_backward(), [](Plan& p) { tile(p, 0, 16).partial = true; },
               {0, -1, "blocks", "outputs: dq is not all heads of the rank's own blocks"});
}

TEST(VerifyBlocks, AreTheTokensThatTheLayoutGives) {
  expect_first_forward(
      [](Plan& p) { std::swap(p.blocks.kv[0].owner, p.blocks.kv[1].owner); },
      {0, -1, "blocks",
       "its key blocks are not the tokens that layout contiguous gives it, in that order"});
  expect_first_forward(
      [](Plan& p) { p.problem.layout = parse_layout("zigzag"); },
      {0, -1, "blocks",
       "its query blocks are not the tokens that layout zigzag gives it, in that order"});
}

TEST(VerifyBlocks, TilesOfTheCallerHaveSlotsOfTheirOwn) {
  expect_first_forward(
      [](Plan& p) { p.ranks[0].slots[0].external = false; },
      {0, -1, "blocks", "slot 0 is not external; tile 0 in it is a tile of the caller"});
  expect_first_forward([](Plan& p) { p.ranks[0].slots[4].external = true; },
                       {0, -1, "blocks", "slot 4 is external; it holds no tile of the caller"});
  expect_first_forward([](Plan& p) { p.ranks[0].slots.push_back({.external = true}); },
                       {0, -1, "blocks", "slot 9 is external; it holds no tile of the caller"});
  expect_first_forward(
      [](Plan& p) {
        tile(p, 0, 1).slot = 0;
        p.ranks[0].slots[0].bytes = 96;
      },
      {0, -1, "blocks", "tiles 0 and 1 of the caller share slot 0"});
  expect_first_forward(  // the received keys, as large as those of the caller
      [](Plan& p) { tile(p, 0, 3).slot = tile(p, 0, 0).slot; },
      {0, -1, "blocks", "tile 3 lies in slot 0 of the caller's k"});
  expect_first_forward([](Plan& p) { move_to(p, 3, 7); },
                       {0, -1, "blocks", "tile 3 lies in slot 3 of the caller's out"});
}

TEST(VerifyBlocks, ASumMayLieWhereItsResultWill) {
  Plan plan = ring_forward();
  move_to(plan, 5, 7);
  move_to(plan, 6, 8);
  EXPECT_EQ(verify(plan), std::vector<Diagnostic>{});
  // Not if it is rounded, nor if a part of it belongs to another tile.
  plan.problem.dtype = Dtype::Bf16;
  EXPECT_FALSE(verify(plan).empty());
}

TEST(VerifyForm, OpsHaveAsManyOperandsAsTheyTake) {
  expect_first_forward([](Plan& p) { ops(p, 0)[8].views.push_back(whole(p, 0, 5)); },
                       {0, 8, "well_formed", "finish with 5 operands; it takes 4"});
  expect_first_forward([](Plan& p) { ops(p, 0)[8].views.pop_back(); },
                       {0, 8, "well_formed", "finish with 3 operands; it takes 4"});
  expect_first_forward([](Plan& p) { ops(p, 0)[0].views.clear(); },
                       {0, 0, "well_formed", "send with 0 operands; it takes 1 or more"});
}

TEST(VerifyForm, FreshSumsAreOfOneKernelCall) {
  const auto init = [](Plan& p) { ops(p, 0)[6].init[kQSide] = true; };
  Plan plan = ring_forward();
  init(plan);
  EXPECT_EQ(verify(plan), std::vector<Diagnostic>{}) << "cleared, and then written";
  drop(plan, 0, 4);
  drop(plan, 0, 4);
  EXPECT_EQ(verify(plan), std::vector<Diagnostic>{}) << "written by its first call";
  expect_first_forward([](Plan& p) { ops(p, 0)[7].init[kQSide] = true; },
                       {0, 8, "complete", "partial out{0} heads 0-4 lacks key block 0"});
  expect_first_forward([](Plan& p) { ops(p, 0)[6].init[kKvSide] = true; },
                       {0, 6, "well_formed", "attend has no sums of keys that it could begin"});
  expect_first_forward([](Plan& p) { ops(p, 0)[8].init[kQSide] = true; },
                       {0, 8, "well_formed", "finish has no sums of queries that it could begin"});
}

TEST(VerifyMatch, EverySendMeetsOneReceiveOfAnEqualView) {
  expect_first_forward([](Plan& p) { drop(p, 1, 3); },
                       {0, 2, "match", "v{0} heads 0-2 has no matching receive on rank 1"});
  expect_first_forward(
      [](Plan& p) {
        insert(p, 0, 4, {.kind = OpKind::Send, .lane = 9, .peer = 1, .views = {whole(p, 0, 1)}});
      },
      {0, 4, "match", "v{0} heads 0-2 has no matching receive on rank 1"});
  expect_first_forward([](Plan& p) { drop(p, 1, 2); },
                       {0, 3, "match", "v{1} heads 0-2 has no matching send on rank 1"});
  expect_first_forward([](Plan& p) { drop(p, 0, 0); },
                       {1, 1, "match", "expects k{0} heads 0-2 but rank 0 sends v{0} heads 0-2"});
  expect_first_forward([](Plan& p) { ops(p, 0)[0].lane = 2; },
                       {1, 1, "match", "expects k{0} heads 0-2 but rank 0 sends v{0} heads 0-2"});
  expect_first_forward(
      [](Plan& p) {
        ops(p, 0)[0].views[0].heads = {0, 1};
      },
      {1, 1, "match", "expects k{0} heads 0-2 but rank 0 sends k{0} heads 0-1"});
  expect_first(ring_backward(), [](Plan& p) { ops(p, 0)[13].views[0] = whole(p, 0, 7); },
               {1, 15, "match", "expects partial dk{1} heads 0-2 but rank 0 sends k{1} heads 0-2"});
}

/// Both ends of a message have the same bytes: a sum that travels rounded does not fit a receive
/// that takes accumulators.
TEST(VerifyForm, BothEndsAreNarrowOrNeither) {
  const Plan plan = narrow_plan("ring", Pass::Backward);
  const std::vector<Op>& mine = plan.ranks[1].ops;
  const auto recv = std::find_if(mine.begin(), mine.end(), [&](const Op& op) {
    return op.kind == OpKind::Recv && plan.ranks[1].tiles[op.views.front().tile].narrow;
  });
  ASSERT_NE(recv, mine.end());
  expect_first(
      plan,
      [&](Plan& p) {
        Tile& received = tile(p, 1, recv->views.front().tile);
        received.narrow = false;
        p.ranks[1].slots[received.slot].bytes *= 2;
      },
      {1, static_cast<int>(recv - mine.begin()), "well_formed",
       "partial dk{1} heads 0-2 travels in fp32; under transfer dtype input it travels in bf16"});
}

TEST(VerifyMatch, MessagesOfALaneMatchInOrder) {
  expect_first_forward([](Plan& p) { std::swap(ops(p, 0)[0], ops(p, 0)[2]); },
                       {1, 1, "match", "expects k{0} heads 0-2 but rank 0 sends v{0} heads 0-2"});
}

}  // namespace
}  // namespace armillary::plan
