// fuse_test.cpp: which ops are fused. That programs stay equivalent is tested by mutation_test.cpp,
// and that results are right by the tests of attention/.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "armillary/plan/operands.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/segments.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/plan/testing/causal_problem.h"
#include "armillary/plan/testing/every_strategy.h"

namespace armillary::plan {
namespace {

/// Number of ops of a program that attend and write results in one call.
int at_once(const RankProgram& program) {
  return static_cast<int>(std::count_if(program.ops.begin(), program.ops.end(), [](const Op& op) {
    return op.kind == OpKind::AttendAll || op.kind == OpKind::AttendGradAll;
  }));
}

RankProgram fused(const Planner& planner, RankProgram program) {
  return fuse(planner.problem(), planner.blocks(), std::move(program));
}

// Attention is done at once if a rank sees all keys in one call, and only then.
TEST(Fuse, AttendsAtOnceWhereOneCallSeesAllKeys) {
  struct Case {
    int world;
    std::string strategy;
    std::string layout;
    int required;
  };
  for (const Case& c : std::vector<Case>{{1, "ring", "zigzag", 1},
                                         {2, "ulysses", "zigzag", 1},
                                         {2, "ulysses", "contiguous", 1},
                                         {2, "ring", "contiguous", 0},
                                         {2, "tokenring", "zigzag", 0}}) {
    Problem problem = causal_problem(c.world, 16);
    problem.layout = parse_layout(c.layout);
    for (const Dtype dtype : {Dtype::F32, Dtype::Bf16}) {
      problem.dtype = dtype;
      const Planner planner(problem, parse_strategy(c.strategy));
      for (const Pass pass : {Pass::Forward, Pass::Backward}) {
        EXPECT_EQ(at_once(fused(planner, planner.program(pass, c.world - 1))), c.required)
            << c.strategy << ", " << c.layout;
      }
    }
  }
}

// The test without locating views says the same as the one with located views.
TEST(Fuse, KnowsOneCallWithoutLocatingViews) {
  for (const char* layout : {"contiguous", "zigzag", "striped:2"}) {
    Problem problem = causal_problem(4, 64);
    problem.layout = parse_layout(layout);
    int count = 0;
    for (const std::string& strategy : every_strategy(problem)) {
      const Planner planner(problem, parse_strategy(strategy));
      for (const Pass pass : {Pass::Forward, Pass::Backward}) {
        const RankProgram program = planner.program(pass, 1);
        for (const Op& op : program.ops) {
          if (op.kind != OpKind::Attend && op.kind != OpKind::AttendGrad) continue;
          const bool located = is_one_call(problem.mask, locate(planner.blocks(), program, op));
          EXPECT_EQ(is_one_call(problem.mask, planner.blocks(), program, op), located) << strategy;
          ++count;
        }
      }
    }
    EXPECT_GT(count, 50) << layout;
  }
}

// There are no sums in slots then.
TEST(Fuse, LeavesNoRoomForWhatIsNotMade) {
  const Planner planner(causal_problem(1, 16), parse_strategy("ring"));
  const RankProgram program = fused(planner, planner.program(Pass::Backward, 0));
  EXPECT_EQ(traffic(planner.problem(), planner.blocks(), program).peak_slot_bytes, 2 * 4 * 16 * 4)
      << "delta alone";
}

// In a ring the first call of each sum initialises it: on rank 1 of 2, causal, zigzag, every sum.
TEST(Fuse, ClearsNothingThatAKernelWritesFirst) {
  const Planner planner(causal_problem(2, 16), parse_strategy("ring"));
  for (const Pass pass : {Pass::Forward, Pass::Backward}) {
    const RankProgram program = fused(planner, planner.program(pass, 1));
    int init = 0;
    for (const Op& op : program.ops) {
      EXPECT_NE(op.kind, OpKind::Clear);
      init += (op.init[kQSide] ? 1 : 0) + (op.init[kKvSide] ? 1 : 0);
    }
    EXPECT_GE(init, 1);
  }
}

// Likewise for a tile whose parts are initialised by different calls: gradients of gathered keys.
TEST(Fuse, ClearsNoPartThatAKernelWritesFirst) {
  Problem problem = causal_problem(6, 16);
  problem.mask = parse_mask("full", {36, 36});
  const Planner planner(problem, parse_strategy("attention2d:overlap=true,rows=3"));
  for (Rank rank = 0; rank < problem.world; ++rank) {
    const RankProgram program = fused(planner, planner.program(Pass::Backward, rank));
    int init_parts = 0;
    for (const Op& op : program.ops) {
      EXPECT_NE(op.kind, OpKind::Clear) << "rank " << rank;
      if (!op.init[kKvSide]) continue;
      const View& dk = op.views[AttendGradOperand::kDK];
      init_parts += is_whole(program.tiles[dk.tile], dk) ? 0 : 1;
    }
    EXPECT_EQ(init_parts, 3) << "rank " << rank;
  }
}

// Fusing a fused program changes nothing.
TEST(Fuse, TwiceIsOnce) {
  for (const char* strategy : {"ring", "tokenring", "attention2d:overlap=true,rows=2"}) {
    const Planner planner(causal_problem(4, 16), parse_strategy(strategy));
    for (const Pass pass : {Pass::Forward, Pass::Backward}) {
      for (Rank rank = 0; rank < 4; ++rank) {
        const RankProgram once = fused(planner, planner.program(pass, rank));
        EXPECT_EQ(fused(planner, once), once)
            << strategy << ", " << to_string(pass) << ", rank " << rank;
      }
    }
  }
}

/// The same number for the program of one rank that was changed by hand before it is fused.
int at_once_after(Pass pass, const std::function<void(RankProgram&)>& change) {
  const Planner planner(causal_problem(1, 16), parse_strategy("ring"));
  RankProgram program = planner.program(pass, 0);
  change(program);
  return at_once(fused(planner, std::move(program)));
}

Op& first_of(RankProgram& program, OpKind kind) {
  return *std::find_if(program.ops.begin(), program.ops.end(),
                       [&](const Op& op) { return op.kind == kind; });
}

/// A view of a new tile that is like another, in a slot of its own.
View another(RankProgram& program, const View& view) {
  Tile tile = program.tiles[view.tile];
  program.slots.push_back({program.slots[tile.slot].bytes});
  tile.slot = static_cast<int>(program.slots.size()) - 1;
  program.tiles.push_back(tile);
  return {.tile = static_cast<int>(program.tiles.size()) - 1,
          .heads = view.heads,
          .blocks = view.blocks};
}

/// Places ops before the first of a kind.
void insert_before(RankProgram& program, OpKind kind, const std::vector<Op>& added) {
  const auto place = std::find_if(program.ops.begin(), program.ops.end(),
                                  [&](const Op& op) { return op.kind == kind; });
  program.ops.insert(place, added.begin(), added.end());
}

/// The operands of finish: a result and the partial that it is made of.
constexpr std::array<std::pair<std::size_t, std::size_t>, 2> kFinished{
    {{FinishOperand::kOut, FinishOperand::kPartOut},
     {FinishOperand::kLse, FinishOperand::kPartLse}}};

TEST(Fuse, MakesASumThatIsNotWhollyOneResult) {
  using enum Pass;
  for (const Pass pass : {Forward, Backward}) {
    EXPECT_EQ(at_once_after(pass, [](RankProgram&) {}), 1);
  }
  EXPECT_EQ(at_once_after(Backward,
                          [](RankProgram& program) {
                            Op copy = first_of(program, OpKind::Copy);
                            copy.views[CopyOperand::kDst] =
                                another(program, copy.views[CopyOperand::kSrc]);
                            insert_before(program, OpKind::Copy, {copy});
                          }),
            0)
      << "a gradient that goes to two places";
  EXPECT_EQ(at_once_after(Forward,
                          [](RankProgram& program) {
                            Views& views = first_of(program, OpKind::Finish).views;
                            views[FinishOperand::kOut].heads = {0, 2};
                            views[FinishOperand::kPartOut].heads = {0, 2};
                          }),
            0)
      << "a result of some of the heads";
  EXPECT_EQ(
      at_once_after(Forward,
                    [](RankProgram& program) {
                      first_of(program, OpKind::Clear).views[ClearOperand::kDst].heads = {0, 2};
                    }),
      0)
      << "a sum of which some heads were there before";
  EXPECT_EQ(
      at_once_after(Forward,
                    [](RankProgram& program) {
                      first_of(program, OpKind::Attend).views[AttendOperand::kOut].heads = {0, 2};
                    }),
      0)
      << "a sum of which some heads are another's";
  EXPECT_EQ(at_once_after(Forward,
                          [](RankProgram& program) {
                            Op& finish = first_of(program, OpKind::Finish);
                            for (const auto& [result, part] : kFinished) {
                              const View sum = finish.views[part];
                              finish.views[part] = another(program, sum);
                              finish.views[result] = sum;
                            }
                          }),
            0)
      << "sums that another's result is written over";
}

TEST(Fuse, MakesASumThatIsMergedBeforeItIsFinished) {
  const auto merge_first = [](RankProgram& program) {
    Op merge = first_of(program, OpKind::Finish);
    merge.kind = OpKind::Merge;
    std::vector<Op> clears;
    for (const auto& [total, part] : kFinished) {
      merge.views[total] = another(program, merge.views[part]);
      clears.push_back({.kind = OpKind::Clear, .step = first_of(program, OpKind::Clear).step});
      clears.back().views.push_back(merge.views[total]);
      first_of(program, OpKind::Finish).views[part] = merge.views[total];
    }
    insert_before(program, OpKind::Attend, clears);
    insert_before(program, OpKind::Finish, {merge});
  };
  EXPECT_EQ(at_once_after(Pass::Forward, merge_first), 0);
}

// The fused call would write the gradients earlier than the copies do, while memory is in use.
TEST(Fuse, MakesGradientsWhoseMemoryIsNotFreeYet) {
  using enum Pass;
  EXPECT_EQ(at_once_after(Backward,
                          [](RankProgram& program) {
                            const View& dq =
                                first_of(program, OpKind::Copy).views[CopyOperand::kDst];
                            const View& q =
                                first_of(program, OpKind::AttendGrad).views[AttendGradOperand::kQ];
                            program.tiles[dq.tile].slot = program.tiles[q.tile].slot;
                          }),
            0)
      << "in place of what the call reads";
  EXPECT_EQ(at_once_after(Backward,
                          [](RankProgram& program) {
                            const Op copy = first_of(program, OpKind::Copy);
                            Op recv{.kind = OpKind::Recv, .lane = 1, .step = copy.step, .peer = 0};
                            recv.views.push_back(copy.views[CopyOperand::kDst]);
                            insert_before(program, OpKind::Copy, {recv});
                          }),
            0)
      << "after a message";
}

TEST(Fuse, MakesASumThatIsCopiedUnrounded) {
  Problem problem = causal_problem(1, 16);
  problem.dtype = Dtype::Bf16;
  const Planner planner(problem, parse_strategy("ring"));
  for (const bool unrounded : {false, true}) {
    RankProgram program = planner.program(Pass::Backward, 0);
    Op& copy = first_of(program, OpKind::Copy);
    if (unrounded) {
      copy.views[CopyOperand::kDst] = another(program, copy.views[CopyOperand::kSrc]);
    }
    EXPECT_EQ(at_once(fused(planner, program)), unrounded ? 0 : 1);
  }
}

// Out and lse of one op that are finished by two ops, each together with a sum of another op.
TEST(Fuse, FinishesOutAndLogSumExpTogetherOrNot) {
  const auto crosswise = [](RankProgram& program) {
    const Op finish = first_of(program, OpKind::Finish);
    Op other = finish;
    std::vector<Op> clears;
    for (std::size_t v = 0; v < finish.views.size(); ++v) {
      other.views[v] = another(program, finish.views[v]);
    }
    for (const auto& [result, part] : kFinished) {
      clears.push_back({.kind = OpKind::Clear, .step = first_of(program, OpKind::Clear).step});
      clears.back().views.push_back(other.views[part]);
    }
    insert_before(program, OpKind::Attend, clears);
    for (const std::size_t lse : {FinishOperand::kLse, FinishOperand::kPartLse}) {
      std::swap(other.views[lse], first_of(program, OpKind::Finish).views[lse]);
    }
    insert_before(program, OpKind::Finish, {other});
  };
  EXPECT_EQ(at_once_after(Pass::Forward, crosswise), 0);
}

}  // namespace
}  // namespace armillary::plan
