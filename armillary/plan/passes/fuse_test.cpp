// Which ops are fused; that programs do the same is what mutation_test.cpp holds, and that results
// are right the tests of attention/.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "armillary/plan/causal_problem.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/strategy.h"

namespace armillary::plan {
namespace {

/// How many ops of a pass attend at once.
int at_once(const RankProgram& program) {
  return static_cast<int>(std::count_if(program.ops.begin(), program.ops.end(), [](const Op& op) {
    return op.kind == OpKind::AttendAll || op.kind == OpKind::AttendGradAll;
  }));
}

RankProgram fused(const Planner& planner, RankProgram program) {
  return fuse(planner.problem(), planner.blocks(), std::move(program));
}

// Where a rank sees all keys in one call, and only there.
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

// It has no sums in its slots then.
TEST(Fuse, LeavesNoRoomForWhatIsNotMade) {
  const Planner planner(causal_problem(1, 16), parse_strategy("ring"));
  const RankProgram program = fused(planner, planner.program(Pass::Backward, 0));
  EXPECT_EQ(traffic(planner.problem(), planner.blocks(), program).peak_slot_bytes, 2 * 4 * 16 * 4)
      << "delta alone";
}

// Of a ring only what one call writes first: on rank 1 of 2, causal, zigzag, every sum.
TEST(Fuse, ClearsNothingThatAKernelWritesFirst) {
  const Planner planner(causal_problem(2, 16), parse_strategy("ring"));
  for (const Pass pass : {Pass::Forward, Pass::Backward}) {
    const RankProgram program = fused(planner, planner.program(pass, 1));
    int fresh = 0;
    for (const Op& op : program.ops) {
      EXPECT_NE(op.kind, OpKind::Clear);
      fresh += (op.fresh_q ? 1 : 0) + (op.fresh_kv ? 1 : 0);
    }
    EXPECT_GE(fresh, 1);
  }
}

// Nor of one tile whose parts begin with different calls: the gradients of gathered keys.
TEST(Fuse, ClearsNoPartThatAKernelWritesFirst) {
  Problem problem = causal_problem(6, 16);
  problem.mask = parse_mask("full", {36, 36});
  const Planner planner(problem, parse_strategy("attention2d:overlap=true,rows=3"));
  for (Rank rank = 0; rank < problem.world; ++rank) {
    const RankProgram program = fused(planner, planner.program(Pass::Backward, rank));
    int fresh_parts = 0;
    for (const Op& op : program.ops) {
      EXPECT_NE(op.kind, OpKind::Clear) << "rank " << rank;
      fresh_parts += op.fresh_kv && !is_whole(program.tiles[op.views[7].tile], op.views[7]) ? 1 : 0;
    }
    EXPECT_EQ(fresh_parts, 3) << "rank " << rank;
  }
}

// What was fused is not fused again, nor forgotten.
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

/// How many ops of the one rank's program attend at once after it was changed by hand.
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

TEST(Fuse, MakesASumThatIsNotWhollyOneResult) {
  using enum Pass;
  for (const Pass pass : {Forward, Backward}) {
    EXPECT_EQ(at_once_after(pass, [](RankProgram&) {}), 1);
  }
  EXPECT_EQ(at_once_after(Backward,
                          [](RankProgram& program) {
                            Op copy = first_of(program, OpKind::Copy);
                            copy.views[0] = another(program, copy.views[1]);
                            insert_before(program, OpKind::Copy, {copy});
                          }),
            0)
      << "a gradient that goes to two places";
  EXPECT_EQ(at_once_after(Forward,
                          [](RankProgram& program) {
                            Op& finish = first_of(program, OpKind::Finish);
                            finish.views[0].heads = finish.views[2].heads = {0, 2};
                          }),
            0)
      << "a result of some of the heads";
  EXPECT_EQ(at_once_after(Forward,
                          [](RankProgram& program) {
                            first_of(program, OpKind::Clear).views[0].heads = {0, 2};
                          }),
            0)
      << "a sum of which some heads were there before";
  EXPECT_EQ(at_once_after(Forward,
                          [](RankProgram& program) {
                            first_of(program, OpKind::Attend).views[3].heads = {0, 2};
                          }),
            0)
      << "a sum of which some heads are another's";
  EXPECT_EQ(at_once_after(Forward,
                          [](RankProgram& program) {
                            Op& finish = first_of(program, OpKind::Finish);
                            for (std::size_t v = 0; v < 2; ++v) {
                              const View sum = finish.views[v + 2];
                              finish.views[v + 2] = another(program, sum);
                              finish.views[v] = sum;
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
    for (std::size_t v = 0; v < 2; ++v) {
      merge.views[v] = another(program, merge.views[v + 2]);
      clears.push_back({.kind = OpKind::Clear, .step = first_of(program, OpKind::Clear).step});
      clears.back().views.push_back(merge.views[v]);
      first_of(program, OpKind::Finish).views[v + 2] = merge.views[v];
    }
    insert_before(program, OpKind::Attend, clears);
    insert_before(program, OpKind::Finish, {merge});
  };
  EXPECT_EQ(at_once_after(Pass::Forward, merge_first), 0);
}

// What the call would write when it reads its operands, not when the gradients are copied.
TEST(Fuse, MakesGradientsWhoseMemoryIsNotFreeYet) {
  using enum Pass;
  EXPECT_EQ(at_once_after(Backward,
                          [](RankProgram& program) {
                            const int dq = first_of(program, OpKind::Copy).views[0].tile;
                            const int q = first_of(program, OpKind::AttendGrad).views[0].tile;
                            program.tiles[dq].slot = program.tiles[q].slot;
                          }),
            0)
      << "in place of what the call reads";
  EXPECT_EQ(at_once_after(Backward,
                          [](RankProgram& program) {
                            const Op copy = first_of(program, OpKind::Copy);
                            Op recv{.kind = OpKind::Recv, .lane = 1, .step = copy.step, .peer = 0};
                            recv.views.push_back(copy.views[0]);
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
    if (unrounded) copy.views[0] = another(program, copy.views[1]);
    EXPECT_EQ(at_once(fused(planner, program)), unrounded ? 0 : 1);
  }
}

// Sums of one op that become results of two others, each with a sum that is not the op's.
TEST(Fuse, FinishesOutAndLogSumExpTogetherOrNot) {
  const auto crosswise = [](RankProgram& program) {
    const Op finish = first_of(program, OpKind::Finish);
    Op other = finish;
    std::vector<Op> clears;
    for (std::size_t v = 0; v < 4; ++v) {
      other.views[v] = another(program, finish.views[v]);
      if (v < 2) continue;
      clears.push_back({.kind = OpKind::Clear, .step = first_of(program, OpKind::Clear).step});
      clears.back().views.push_back(other.views[v]);
    }
    insert_before(program, OpKind::Attend, clears);
    std::swap(other.views[1], first_of(program, OpKind::Finish).views[1]);
    std::swap(other.views[3], first_of(program, OpKind::Finish).views[3]);
    insert_before(program, OpKind::Finish, {other});
  };
  EXPECT_EQ(at_once_after(Pass::Forward, crosswise), 0);
}

}  // namespace
}  // namespace armillary::plan
