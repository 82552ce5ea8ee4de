// mutate_test.cpp: mutants of plans, the mistakes that proofs must find: each kind changes what its
// name says and nothing else, and all of a plan are named apart.
#include "armillary/plan/mutate.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "armillary/plan/operands.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/plan/testing/broken_plan.h"

namespace armillary::plan {
namespace {

Plan plan_of(const char* strategy, Pass pass) {
  const Problem problem{.world = 3,
                        .heads = 6,
                        .kv_heads = 3,
                        .mask = parse_mask("causal", {.q = 12, .kv = 12}),
                        .layout = parse_layout("zigzag")};
  return make_plan(problem, parse_strategy(strategy), pass);
}

std::vector<Plan> plans() {
  std::vector<Plan> plans;
  for (const char* strategy : {"ring", "allgather", "ulysses"}) {
    for (const Pass pass : {Pass::Forward, Pass::Backward})
      plans.push_back(plan_of(strategy, pass));
  }
  return plans;
}

TEST(Mutate, ChangesItsRanksOnly) {
  for (const Plan& plan : plans()) {
    for (const Mutation& mutation : mutations(plan)) {
      Plan mutant = apply(plan, mutation);
      const auto rank = static_cast<std::size_t>(mutation.rank);
      const bool same_ops = mutation.kind == MutationKind::Swapped &&
                            plan.ranks[rank].ops[mutation.op] == plan.ranks[rank].ops[mutation.to];
      EXPECT_EQ(mutant == plan, same_ops) << to_string(mutation);
      const std::vector<Rank> changed = changed_ranks(plan, mutation);
      EXPECT_EQ(changed.size(), mutation.kind == MutationKind::OtherDtype ? 2U : 1U);
      for (const Rank r : changed) {
        EXPECT_EQ(mutant.ranks[r] == plan.ranks[r], same_ops) << to_string(mutation);
        mutant.ranks[r] = plan.ranks[r];
      }
      EXPECT_EQ(mutant, plan) << to_string(mutation);
    }
  }
}

TEST(Mutate, NamesEveryMutationApart) {
  const Plan plan = plan_of("ring", Pass::Backward);
  std::set<std::string> names;
  for (const Mutation& mutation : mutations(plan)) {
    EXPECT_TRUE(names.insert(to_string(mutation)).second) << to_string(mutation);
  }
}

TEST(Mutate, NamesSayWhatIsChanged) {
  const auto name = [](Mutation mutation) {
    mutation.rank = 1;
    mutation.op = 5;
    return to_string(mutation);
  };
  EXPECT_EQ(name({.kind = MutationKind::Dropped}), "rank 1 op 5: dropped");
  EXPECT_EQ(name({.kind = MutationKind::Doubled}), "rank 1 op 5: doubled");
  EXPECT_EQ(name({.kind = MutationKind::Swapped, .to = 7}), "rank 1 op 5: swapped with op 7");
  EXPECT_EQ(name({.kind = MutationKind::OtherPeer, .to = 2}), "rank 1 op 5: other peer 2");
  EXPECT_EQ(name({.kind = MutationKind::FewerBlocks, .operands = 5, .block = 3}),
            "rank 1 op 5: fewer blocks, operands 0,2: without block 3");
  EXPECT_EQ(name({.kind = MutationKind::OtherBlock, .operands = 1, .block = 3, .to = 4}),
            "rank 1 op 5: other block, operands 0: block 4 in place of 3");
  EXPECT_EQ(name({.kind = MutationKind::FewerHeads, .operands = 2, .to = 0}),
            "rank 1 op 5: fewer heads, operands 1: without the first head");
  EXPECT_EQ(name({.kind = MutationKind::FewerHeads, .operands = 2, .to = 1}),
            "rank 1 op 5: fewer heads, operands 1: without the last head");
  EXPECT_EQ(name({.kind = MutationKind::OtherTile, .operands = 2, .to = 9}),
            "rank 1 op 5: other tile, operand 1: tile 9");
  EXPECT_EQ(name({.kind = MutationKind::OtherBatch, .to = 3}), "rank 1 op 5: other batch 3");
  EXPECT_EQ(name({.kind = MutationKind::OtherStart, .to = 1}),
            "rank 1 op 5: other start of the sums of keys");
  EXPECT_EQ(name({.kind = MutationKind::OtherZeroCopy}), "rank 1 op 5: other zero copy");
  EXPECT_EQ(name({.kind = MutationKind::OtherDtype, .to = 3}),
            "rank 1 op 5: other dtype, received by op 3");
  EXPECT_EQ(to_string({.kind = MutationKind::SlotReused, .rank = 1, .tile = 4, .to = 2}),
            "rank 1 tile 4: slot 2 reused");
  EXPECT_EQ(to_string({.kind = MutationKind::OtherExternal, .rank = 1, .to = 2}),
            "rank 1 slot 2: other external");
  EXPECT_EQ(to_string({.kind = MutationKind::OtherSaved, .rank = 1, .tile = 3}),
            "rank 1 saved 3: swapped with the next");
}

/// Swaps with the next op and, if that is of another lane, with the next op of its own lane.
TEST(Mutate, SwapsNeighbours) {
  for (const Plan& plan : plans()) {
    std::set<std::pair<int, int>> expected;
    const std::vector<Op>& ops = plan.ranks[1].ops;
    for (int i = 0; i + 1 < static_cast<int>(ops.size()); ++i) {
      expected.insert({i, i + 1});
      int next = i + 1;
      while (next < static_cast<int>(ops.size()) && ops[next].lane != ops[i].lane) ++next;
      if (next < static_cast<int>(ops.size())) expected.insert({i, next});
    }
    std::set<std::pair<int, int>> swapped;
    for (const Mutation& mutation : mutations(plan)) {
      if (mutation.kind != MutationKind::Swapped || mutation.rank != 1) continue;
      EXPECT_TRUE(swapped.insert({mutation.op, mutation.to}).second) << to_string(mutation);
    }
    EXPECT_EQ(swapped, expected);
  }
}

TEST(Mutate, FindsEveryKindOfSlip) {
  std::map<MutationKind, int> counts;
  for (const Plan& plan : plans()) {
    for (const Mutation& mutation : mutations(plan)) ++counts[mutation.kind];
  }
  EXPECT_EQ(counts.size(), 15U);
}

/// The ring of two ranks in broken_plan.h has 9 ops, 9 tiles and 9 slots a rank. Operands are
/// changed one by one, and those of a side together: both sides of two attentions, and all of
/// finish.
TEST(Mutate, CountsOfAWorkedPlan) {
  std::map<MutationKind, int> counts;
  for (const Mutation& mutation : mutations(ring_forward())) ++counts[mutation.kind];
  const int messages = 4;
  const int views = messages + 2 * 1 + 2 * 5 + 4;
  const int groups = views + 2 * 2 + 1;
  const std::map<MutationKind, int> expected_of_a_rank{
      {MutationKind::Dropped, 9},
      {MutationKind::Doubled, 9},
      {MutationKind::Swapped, 8},           // with the next; no lane is interrupted by another
      {MutationKind::OtherPeer, messages},  // itself
      {MutationKind::OtherBlock, groups},   // the next block only: a tile has one block
      {MutationKind::FewerHeads, 2 * groups},
      {MutationKind::OtherTile, views - 2},  // of k, v, out and lse there are two each, of q one
      {MutationKind::SlotReused, 9 * 8},
      {MutationKind::OtherStart, 2},
      {MutationKind::OtherBatch, 2 * 9}};
  for (const auto& [kind, count] : expected_of_a_rank) {
    EXPECT_EQ(counts[kind], 2 * count) << to_string(kind);
  }
  EXPECT_EQ(counts[MutationKind::FewerBlocks], 0);
}

TEST(Mutate, DropsAndDoublesEveryOp) {
  const Plan plan = plan_of("ring", Pass::Forward);
  std::size_t dropped = 0;
  std::size_t ops = 0;
  for (const Mutation& mutation : mutations(plan)) {
    const Plan mutant = apply(plan, mutation);
    const std::vector<Op>& before = plan.ranks[mutation.rank].ops;
    const std::vector<Op>& after = mutant.ranks[mutation.rank].ops;
    if (mutation.kind == MutationKind::Dropped) {
      ++dropped;
      EXPECT_EQ(after.size() + 1, before.size());
    } else if (mutation.kind == MutationKind::Doubled) {
      ASSERT_EQ(after.size(), before.size() + 1);
      EXPECT_EQ(after[mutation.op], after[mutation.op + 1]);
    } else {
      EXPECT_EQ(after.size(), before.size());
    }
  }
  for (const RankProgram& program : plan.ranks) ops += program.ops.size();
  EXPECT_EQ(dropped, ops);
}

TEST(Mutate, ShrinksViewsThatMustAgreeTogether) {
  const Plan plan = plan_of("ring", Pass::Forward);
  bool together = false;
  for (const Mutation& mutation : mutations(plan)) {
    if (mutation.kind != MutationKind::FewerBlocks) continue;
    const Op& op = plan.ranks[mutation.rank].ops[mutation.op];
    if (op.kind != OpKind::Attend || mutation.operands != 0b00110) continue;
    together = true;
    const Op after = apply(plan, mutation).ranks[mutation.rank].ops[mutation.op];
    const BlockIds& keys = after.views[QkvOperand::kK].blocks;
    EXPECT_EQ(keys, after.views[QkvOperand::kV].blocks);
    EXPECT_EQ(keys.size() + 1, op.views[QkvOperand::kK].blocks.size());
    EXPECT_EQ(after.views[QkvOperand::kQ], op.views[QkvOperand::kQ]);
  }
  EXPECT_TRUE(together);
}

/// Changes both ends of the message: their tiles were alike and still are, and have room.
TEST(Mutate, FlipsTheDtypeOfEverySumThatIsSent) {
  for (Plan plan : plans()) {
    for (const TransferDtype transfer_dtype : {TransferDtype::Accumulator, TransferDtype::Input}) {
      plan.problem.dtype = Dtype::Bf16;
      plan.problem.transfer_dtype = transfer_dtype;
      plan = make_plan(plan.problem, parse_strategy(plan.strategy), plan.pass);
      int flipped = 0;
      for (const Mutation& mutation : mutations(plan)) {
        if (mutation.kind != MutationKind::OtherDtype) continue;
        ++flipped;
        const Plan mutant = apply(plan, mutation);
        for (const Rank rank : changed_ranks(plan, mutation)) {
          const int op = rank == mutation.rank ? mutation.op : mutation.to;
          const int id = plan.ranks[rank].ops[op].views.front().tile;
          const Tile& tile = mutant.ranks[rank].tiles[id];
          EXPECT_TRUE(tile.partial) << to_string(mutation);
          EXPECT_NE(tile.narrow, plan.ranks[rank].tiles[id].narrow) << to_string(mutation);
          EXPECT_LE(bytes_of(plan.problem, plan.blocks, tile),
                    mutant.ranks[rank].slots[tile.slot].bytes);
        }
        EXPECT_EQ(mutant.ranks[mutation.rank].ops[mutation.op].views[0].blocks,
                  mutant.ranks[changed_ranks(plan, mutation)[1]].ops[mutation.to].views[0].blocks);
      }
      int sums = 0;
      for (const RankProgram& program : plan.ranks) {
        for (const Op& op : program.ops) {
          sums += op.kind == OpKind::Send && program.tiles[op.views.front().tile].partial ? 1 : 0;
        }
      }
      EXPECT_EQ(flipped, sums) << plan.strategy;
    }
  }
}

TEST(Mutate, MakesRoomInASlotThatIsReused) {
  const Plan plan = plan_of("allgather", Pass::Backward);
  for (const Mutation& mutation : mutations(plan)) {
    if (mutation.kind != MutationKind::SlotReused) continue;
    const RankProgram program = apply(plan, mutation).ranks[mutation.rank];
    const Tile& tile = program.tiles[mutation.tile];
    EXPECT_EQ(tile.slot, mutation.to);
    EXPECT_LE(bytes_of(plan.problem, plan.blocks, tile), program.slots[tile.slot].bytes);
  }
}

TEST(Mutate, ReadsLikeASentence) {
  EXPECT_EQ(to_string(Mutation{.kind = MutationKind::Dropped, .rank = 2, .op = 5}),
            "rank 2 op 5: dropped");
  EXPECT_EQ(to_string(Mutation{.kind = MutationKind::OtherPeer, .rank = 2, .op = 5, .to = 3}),
            "rank 2 op 5: other peer 3");
  EXPECT_EQ(to_string(Mutation{.kind = MutationKind::OtherBlock,
                               .rank = 0,
                               .op = 1,
                               .operands = 0b110,
                               .block = 4,
                               .to = 7}),
            "rank 0 op 1: other block, operands 1,2: block 7 in place of 4");
  EXPECT_EQ(to_string(Mutation{.kind = MutationKind::SlotReused, .rank = 1, .tile = 3, .to = 0}),
            "rank 1 tile 3: slot 0 reused");
  EXPECT_EQ(to_string(Mutation{.kind = MutationKind::OtherDtype, .rank = 1, .op = 3, .to = 4}),
            "rank 1 op 3: other dtype, received by op 4");
}

}  // namespace
}  // namespace armillary::plan
