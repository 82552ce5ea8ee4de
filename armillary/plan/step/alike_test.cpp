// alike_test.cpp: each rank of a large mesh does what a rank of the small one does, and a program
// that does not is told by its op.
#include "armillary/plan/step/alike.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "armillary/plan/step/check_step.h"
#include "armillary/plan/step/step_program.h"
#include "armillary/plan/step/testing/step_shapes.h"
#include "armillary/plan/step/words.h"

namespace armillary::plan::step {
namespace {

StepShape large(int zero) {
  StepShape shape = small_step({.dp = 6, .cp = 3, .tp = 6}, zero, 2, true);
  shape.copies = 3;
  shape.sharers = 3;
  shape.units[1].shared = 7;
  cut_unevenly(shape);
  return shape;
}

TEST(StepAlike, RanksOfALargeMeshAreThoseOfTheSmallOne) {
  for (const int zero : {0, 1, 2, 3}) {
    const StepProgram step = build_step(large(zero));
    const StepProgram small = build_step(smallest_alike(large(zero)));
    EXPECT_EQ(small.ranks.size(), 32U);
    EXPECT_TRUE(check_step(small.world(), small.tables.shape()).empty());
    std::set<Rank> used;
    for (const RankProgram& program : step.ranks) {
      const Rank rank = rank_alike(step.tables, program.rank, small.tables);
      used.insert(rank);
      EXPECT_FALSE(first_difference({step.tables, program}, {small.tables, small.ranks[rank]}))
          << zero << " " << program.rank;
    }
    EXPECT_EQ(used.size(), 32U);
  }
}

/// Ep takes tp and a part of cp, or a part of tp.
TEST(StepAlike, RanksWithExperts) {
  for (const auto& [mesh, ep] : {std::pair(MeshShape{.dp = 3, .cp = 6, .tp = 3}, 9),
                                 std::pair(MeshShape{.dp = 2, .cp = 3, .tp = 8}, 4),
                                 std::pair(MeshShape{.dp = 4, .cp = 3}, 12)}) {
    for (const int zero : {0, 3}) {
      StepShape shape = small_step(mesh, zero, 2, true);
      add_experts(shape, ep);
      const StepProgram step = build_step(shape);
      const StepProgram small = build_step(smallest_alike(shape));
      EXPECT_TRUE(check_step(small.world(), small.tables.shape()).empty()) << name_of(shape);
      for (const RankProgram& program : step.ranks) {
        const Rank rank = rank_alike(step.tables, program.rank, small.tables);
        EXPECT_FALSE(first_difference({step.tables, program}, {small.tables, small.ranks[rank]}))
            << name_of(shape) << " " << program.rank;
      }
    }
  }
}

TEST(StepAlike, ASmallShapeIsItself) {
  for (const StepShape& shape :
       {small_step({.dp = 2, .tp = 2}, 3, 1, true), small_step({}, 1, 1, false)}) {
    const StepShape small = smallest_alike(shape);
    EXPECT_EQ(small.mesh, shape.mesh);
    const StepTables tables(small);
    for (Rank rank = 0; rank < shape.mesh.ranks(); ++rank) {
      EXPECT_EQ(rank_alike(tables, rank, tables), rank);
    }
  }
}

TEST(StepAlike, ADifferenceIsTold) {
  const StepProgram step = build_step(large(3));
  const StepProgram small = build_step(smallest_alike(large(3)));
  const Rank as = rank_alike(step.tables, 5, small.tables);
  const auto difference = [&](const std::function<void(RankProgram&)>& change) {
    RankProgram program = step.ranks[5];
    change(program);
    return first_difference({step.tables, program}, {small.tables, small.ranks[as]});
  };
  EXPECT_FALSE(difference([](RankProgram&) {}));
  EXPECT_EQ(difference([](RankProgram& p) { p.ops.erase(p.ops.begin() + 4); }), 4);
  EXPECT_EQ(difference([](RankProgram& p) { p.ops.pop_back(); }),
            static_cast<int>(step.ranks[5].ops.size()) - 1);
  EXPECT_EQ(difference([](RankProgram& p) { ++p.ops[7].lane; }), 7);
  EXPECT_EQ(difference([](RankProgram& p) { p.groups[0].pop_back(); }), -1);
  EXPECT_EQ(difference([](RankProgram& p) { p.tiles[0].heads = {0, 2}; }), -1);
  EXPECT_EQ(difference([&](RankProgram& p) { p.ops[3].views[0].heads = {5, 6}; }), 3);
}

StepShape with_microbatches(StepShape shape, int microbatches) {
  shape.microbatches = microbatches;
  return shape;
}

TEST(StepAlike, ManyMicrobatchesAreFive) {
  std::vector<StepShape> steps = small_steps({{}, {.dp = 2}, {.dp = 3, .tp = 2}});
  steps.push_back(small_step({.dp = 2}, 3, 1, true));
  steps.back().reshard_after_forward = false;
  steps.push_back(small_step({.dp = 4}, 2, 1, false));
  steps.back().copies = 2;
  steps.back().state_on_host = true;
  for (const StepShape& few : steps) {
    const StepShape shape = with_microbatches(few, 9);
    const StepProgram step = build_step(shape);
    const StepProgram small = build_step(smallest_alike(shape));
    EXPECT_EQ(small.tables.shape().microbatches, 5) << name_of(shape);
    EXPECT_TRUE(check_small(small).empty()) << name_of(shape);
    EXPECT_TRUE(check_step(step.world(), shape).empty()) << name_of(shape);
    for (const RankProgram& program : step.ranks) {
      const Rank as = rank_alike(step.tables, program.rank, small.tables);
      EXPECT_FALSE(first_difference({step.tables, program}, {small.tables, small.ranks[as]}))
          << name_of(shape) << " " << program.rank;
    }
  }
}

/// Every op of every microbatch, left out, doubled, moved, and changed in each of its numbers.
TEST(StepAlike, AnyOpOfAnyMicrobatchIsCompared) {
  for (const int zero : {0, 1, 2, 3}) {
    const StepShape shape = with_microbatches(small_step({.dp = 2, .tp = 2}, zero, 1, true), 8);
    const StepProgram step = build_step(shape);
    const StepProgram small = build_step(smallest_alike(shape));
    ASSERT_EQ(small.tables.shape().microbatches, 5);
    const auto expect_told = [&](std::size_t op, const auto& change) {
      RankProgram program = step.ranks[1];
      change(program, program.ops[op]);
      if (program == step.ranks[1]) return;
      EXPECT_TRUE(first_difference({step.tables, program}, {small.tables, small.ranks[1]}))
          << zero << " op " << op;
    };
    for (std::size_t i = 0; i < step.ranks[1].ops.size(); ++i) {
      const auto at = static_cast<std::ptrdiff_t>(i);
      expect_told(i, [&](RankProgram& p, Op&) { p.ops.erase(p.ops.begin() + at); });
      expect_told(i,
                  [&](RankProgram& p, const Op& op) { p.ops.insert(p.ops.begin() + at, Op(op)); });
      expect_told(i, [&](RankProgram& p, Op& op) {
        if (i + 1 < p.ops.size()) std::swap(op, p.ops[i + 1]);
      });
      expect_told(i, [](RankProgram&, Op& op) { ++op.lane; });
      expect_told(i, [](RankProgram&, Op& op) { ++op.step; });
      expect_told(i, [](RankProgram&, Op& op) { ++op.peer; });
      expect_told(i, [](RankProgram&, Op& op) { op.init[0] = !op.init[0]; });
      expect_told(i, [](RankProgram&, Op& op) { op.init[1] = !op.init[1]; });
      expect_told(i, [](RankProgram&, Op& op) { op.kind = StepOp::Norm; });
      for (std::size_t v = 0; v < step.ranks[1].ops[i].views.size(); ++v) {
        expect_told(i, [v](RankProgram&, Op& op) { ++op.views[v].tile; });
        expect_told(i, [v](RankProgram&, Op& op) { --op.views[v].tile; });
        expect_told(i, [v](RankProgram&, Op& op) { ++op.views[v].heads.end; });
        expect_told(i, [v](RankProgram&, Op& op) { op.views[v].blocks = BlockIds{99}; });
      }
    }
    for (std::size_t i = 0; i < step.ranks[1].tiles.size(); ++i) {
      expect_told(0, [i](RankProgram& p, Op&) { ++p.tiles[i].heads.begin; });
      expect_told(0, [i](RankProgram& p, Op&) { p.tiles[i].blocks = BlockIds{99}; });
      expect_told(0, [i](RankProgram& p, Op&) { p.tiles[i].slot = i == 0 ? 1 : p.tiles[0].slot; });
      expect_told(0, [i](RankProgram& p, Op&) { p.tiles[i].narrow = true; });
    }
    for (std::size_t i = 0; i + 1 < step.ranks[1].inputs.size(); ++i) {
      expect_told(0, [i](RankProgram& p, Op&) { std::swap(p.inputs[i], p.inputs[i + 1]); });
    }
  }
}

/// A sum that one rank comes to a microbatch earlier than the others would meet another one of
/// theirs in a step of more microbatches.
TEST(StepAlike, RanksComeToTheSameSumsInAMicrobatch) {
  StepProgram small = build_step(small_step({.dp = 2}, 2, 5, true));
  EXPECT_TRUE(check_small(small).empty());
  for (Op& op : small.ranks[1].ops) {
    const bool is_first = op.step == 2 * small.tables.units();  // Row of the second microbatch.
    if (op.kind == StepOp::ReduceScatter && is_first) --op.step;
  }
  EXPECT_TRUE(check_step(small.world(), small.tables.shape()).empty());
  const std::vector<Diagnostic> faults = check_small(small);
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_EQ(faults[0].rule, "match");
}

/// A model of 30 layers on 8 ranks in 256 microbatches is proved as one in 5.
TEST(StepAlike, ProofsDoNotGrowWithMicrobatches) {
  StepShape shape{.units = {}, .mesh = {.dp = 4, .tp = 2}, .microbatches = 256, .zero = 3};
  shape.units.assign(32, UnitShape{.name = "unit", .split = 1000, .summed = 10, .uses = {}});
  EXPECT_EQ(smallest_alike(shape).microbatches, 5);
}

/// A model of 30 layers on 8 ranks in 4 microbatches, as a run proves it.
TEST(StepAlike, ProofsAreQuick) {
  StepShape shape{.units = {}, .mesh = {.dp = 4, .tp = 2}, .microbatches = 4, .zero = 3};
  shape.units.assign(32, UnitShape{.name = "unit", .split = 1000, .summed = 10, .uses = {}});
  const auto begin = std::chrono::steady_clock::now();
  const StepProgram small = build_step(smallest_alike(shape));
  EXPECT_TRUE(check_step(small.world(), small.tables.shape()).empty());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), 5) << "0.2 s are meant, of a build that is optimised";
}

}  // namespace
}  // namespace armillary::plan::step
