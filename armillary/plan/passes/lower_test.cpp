// lower_test.cpp: passes alone and together, over every strategy. The tests of each pass check
// which ops it changes.
#include "armillary/plan/passes/lower.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/operands.h"
#include "armillary/plan/passes/replay.h"
#include "armillary/plan/testing/every_strategy.h"
#include "armillary/plan/verify/verify.h"

namespace armillary::plan {
namespace {

Problem lowered_problem(int world, Dtype dtype) {
  return {.world = world,
          .batch = 2,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 8,
          .value_dim = 4,
          .dtype = dtype,
          .mask = parse_mask("causal", {37, 37}),
          .layout = parse_layout("zigzag"),
          .return_lse = true,
          .transfer_dtype = TransferDtype::Input};
}

const std::vector<Pass> kEveryPass{Pass::Forward, Pass::Backward, Pass::Replay};

std::string refusal(const char* text) {
  try {
    parse_lowerings(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Lower, ReadsNamesOfPasses) {
  using enum Lowering;
  EXPECT_EQ(parse_lowerings("none"), std::vector<Lowering>{});
  EXPECT_EQ(parse_lowerings("all"), (std::vector{Fuse, Alias, Coalesce, ZeroCopy}));
  EXPECT_EQ(parse_lowerings("alias,fuse"), (std::vector{Alias, Fuse}));
  EXPECT_EQ(refusal("fues"),
            "lower: 'fues' is no pass; fuse, alias, coalesce, zero_copy, none or all is required; "
            "nearest: "
            "'fuse'");
  EXPECT_EQ(refusal(""),
            "lower: '' is no pass; fuse, alias, coalesce, zero_copy, none or all is required");
  EXPECT_EQ(refusal("fuse,"),
            "lower: '' is no pass; fuse, alias, coalesce, zero_copy, none or all is required");
  EXPECT_EQ(refusal("all,fuse"), "lower: 'all' stands among others; alone is required");
  EXPECT_EQ(refusal("fuse,alias,fuse"),
            "lower: 'fuse,alias,fuse' names fuse twice; once is required");
}

/// Programs are well formed and exact after any of the passes; tests/mutation proves more worlds.
TEST(Lower, EveryPassAloneAndTogetherLeavesPlansExact) {
  for (const Dtype dtype : {Dtype::F32, Dtype::Bf16}) {
    const Problem problem = lowered_problem(4, dtype);
    for (const std::string& name : every_strategy(problem)) {
      const std::vector<Plan> plans = make_plans(problem, parse_strategy(name), kEveryPass);
      std::vector<Plan> all;
      for (const Plan& plan : plans) {
        for (const char* passes : {"none", "fuse", "alias", "coalesce", "zero_copy", "all"}) {
          const Plan lowered = lower(plan, parse_lowerings(passes));
          ASSERT_EQ(verify(lowered), std::vector<Diagnostic>{})
              << name << ' ' << to_string(plan.pass) << ' ' << passes;
        }
        all.push_back(lower(plan));
        EXPECT_TRUE(lower(all.back()) == all.back()) << name << ": there is nothing left to do";
      }
      EXPECT_EQ(verify_saved(all[0], all[1]), std::vector<Diagnostic>{}) << name;
      EXPECT_EQ(verify_saved(all[2], all[1]), std::vector<Diagnostic>{}) << name;
    }
  }
}

TEST(Lower, MovesAndComputesTheSameInNoMoreMemory) {
  for (const Dtype dtype : {Dtype::F32, Dtype::Bf16}) {
    const Problem problem = lowered_problem(4, dtype);
    for (const std::string& name : every_strategy(problem)) {
      for (const Plan& plan : make_plans(problem, parse_strategy(name), kEveryPass)) {
        const Plan lowered = lower(plan);
        for (Rank rank = 0; rank < problem.world; ++rank) {
          const Traffic before = traffic(problem, plan.blocks, plan.ranks[rank]);
          const Traffic after = traffic(problem, plan.blocks, lowered.ranks[rank]);
          EXPECT_EQ(after.sent_bytes, before.sent_bytes) << name;
          EXPECT_EQ(after.received_bytes, before.received_bytes) << name;
          EXPECT_EQ(after.visible_pairs, before.visible_pairs) << name;
          EXPECT_LE(after.peak_slot_bytes, before.peak_slot_bytes) << name;
          EXPECT_LE(lowered.ranks[rank].ops.size(), plan.ranks[rank].ops.size()) << name;
        }
      }
    }
  }
}

int slot_of(const RankProgram& program, const View& view) {
  return program.tiles[view.tile].slot;
}

/// By tensor: true if the sum lies in the slot of its result.
std::map<Tensor, bool> in_place(const RankProgram& program) {
  std::map<Tensor, bool> items;
  for (const Op& op : program.ops) {
    const auto add = [&](std::size_t result, std::size_t sum) {
      const Tensor tensor = program.tiles[op.views[result].tile].tensor;
      items[tensor] = slot_of(program, op.views[result]) == slot_of(program, op.views[sum]);
    };
    if (op.kind == OpKind::Copy) add(CopyOperand::kDst, CopyOperand::kSrc);
    if (op.kind == OpKind::Finish) {
      add(FinishOperand::kOut, FinishOperand::kPartOut);
      add(FinishOperand::kLse, FinishOperand::kPartLse);
    }
  }
  return items;
}

TEST(Alias, SumsLieWhereResultsOfTheSameDtypeWill) {
  for (const Dtype dtype : {Dtype::F32, Dtype::Bf16}) {
    const Problem problem = lowered_problem(2, dtype);
    const Planner planner(problem, parse_strategy("ring"));
    const bool same = dtype == Dtype::F32;  // as the accumulator
    const auto aliased = [&](Pass pass) {
      return in_place(alias(problem, planner.blocks(), planner.program(pass, 0)));
    };
    using enum Tensor;
    EXPECT_EQ(aliased(Pass::Forward), (std::map<Tensor, bool>{{Out, same}, {Lse, true}}));
    const std::map<Tensor, bool> backward = aliased(Pass::Backward);
    EXPECT_EQ(backward.at(DQ), same);
  }
}

/// As strategies make programs, and after each pass.
TEST(Lower, WhatForwardSavesIsTheCallers) {
  const Problem problem = lowered_problem(2, Dtype::Bf16);
  const Planner planner(problem, parse_strategy("ulysses"));
  for (const char* passes : {"none", "fuse", "alias", "coalesce", "zero_copy", "all"}) {
    const RankProgram program = lower(problem, planner.blocks(), planner.program(Pass::Forward, 0),
                                      parse_lowerings(passes));
    EXPECT_EQ(
        std::count_if(program.saved.begin(), program.saved.end(),
                      [&](int tile) { return program.slots[program.tiles[tile].slot].external; }),
        5)
        << passes;
  }
}

std::vector<Op> messages_of(const RankProgram& program) {
  std::vector<Op> messages;
  std::copy_if(program.ops.begin(), program.ops.end(), std::back_inserter(messages),
               [](const Op& op) { return op.is_comm(); });
  return messages;
}

TEST(Coalesce, OneMessageOfWhatAnAllToAllTradesWithAPeerAtOnce) {
  const Problem problem = lowered_problem(4, Dtype::Bf16);
  const auto views = [&](const char* strategy) {
    const Planner planner(problem, parse_strategy(strategy));
    std::map<std::size_t, int> messages;
    for (const Op& op : messages_of(coalesce(planner.program(Pass::Forward, 1)))) {
      ++messages[op.views.size()];
    }
    return messages;
  };
  const std::map<std::size_t, int> packed = views("usp:qkv=packed,u=2");
  EXPECT_EQ(packed.at(3), 2) << "q, k, v to and from one peer";
  EXPECT_EQ(views("ring").size(), 1U) << "k and v of a ring travel apart";
  EXPECT_EQ(views("ring").begin()->first, 1U);
}

/// A receive into a tile that an op between the two messages touches stays a message of its own.
TEST(Coalesce, NotPastWhatItWaitsFor) {
  const Problem problem = lowered_problem(4, Dtype::Bf16);
  const Planner planner(problem, parse_strategy("usp:qkv=packed,u=2"));
  RankProgram program = planner.program(Pass::Forward, 1);
  const auto first = std::find_if(program.ops.begin(), program.ops.end(),
                                  [](const Op& op) { return op.kind == OpKind::Recv; });
  const auto second = std::find_if(first + 1, program.ops.end(), [&](const Op& op) {
    return op.kind == OpKind::Recv && op.peer == first->peer && op.step == first->step;
  });
  ASSERT_NE(second, program.ops.end());
  const std::size_t before = messages_of(coalesce(program)).size();
  const Op reader{.kind = OpKind::Clear, .step = second->step, .views = second->views};
  program.ops.insert(second, reader);
  EXPECT_EQ(messages_of(coalesce(program)).size(), before + 1);
}

}  // namespace
}  // namespace armillary::plan
