// alike_test.cpp: each rank of a large mesh does what a rank of the small one does, and a program
// that does not is told by its op.
#include "armillary/plan/step/alike.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <set>
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
