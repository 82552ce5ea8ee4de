// mutants_test.cpp: no mutant of any small step is proved, with grouped axes, experts or state on
// the host either, and its fault is shown in the grid.
#include "armillary/plan/step/mutants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "armillary/plan/step/check_step.h"
#include "armillary/plan/step/testing/step_shapes.h"
#include "armillary/plan/step/text.h"

namespace armillary::plan::step {
namespace {

class StepMutantsOnMesh : public testing::TestWithParam<std::size_t> {};

TEST_P(StepMutantsOnMesh, AreCaught) {
  int count = 0;
  for (const StepShape& shape : small_steps({small_meshes()[GetParam()]})) {
    const StepProgram step = build_step(shape);
    for_each_mutant(step, [&](const StepMutant& mutant) {
      ++count;
      EXPECT_FALSE(check_step(World{step.measures, mutant.ranks}, shape).empty())
          << name_of(shape) << ": " << to_string(mutant, step);
    });
  }
  EXPECT_GT(count, 16);
}

/// Copies and sharers. A world of 16 ranks has many mutants, so it is taken once.
TEST(StepMutants, OfGroupedAxesAreCaught) {
  for (const StepShape& shape : grouped_steps()) {
    if (shape.mesh.ranks() > 8 && (shape.zero != 3 || shape.microbatches != 1)) continue;
    const StepProgram step = build_step(shape);
    for_each_mutant(step, [&](const StepMutant& mutant) {
      EXPECT_FALSE(check_step(World{step.measures, mutant.ranks}, shape).empty())
          << name_of(shape) << ": " << to_string(mutant, step);
    });
  }
}

TEST(StepMutants, OfExpertsAreCaught) {
  for (const StepShape& shape : expert_steps()) {
    if (shape.mesh.ranks() > 4 && (shape.zero % 3 != 0 || shape.microbatches != 1)) continue;
    const StepProgram step = build_step(shape);
    for_each_mutant(step, [&](const StepMutant& mutant) {
      EXPECT_FALSE(check_step(World{step.measures, mutant.ranks}, shape).empty())
          << name_of(shape) << ": " << to_string(mutant, step);
    });
  }
}

TEST(StepMutants, OfStateOnTheHostAreCaught) {
  std::set<std::string> kinds;
  for (StepShape shape : small_steps({{}, {.dp = 2}, {.cp = 2, .tp = 2}})) {
    shape.state_on_host = true;
    const StepProgram step = build_step(shape);
    for_each_mutant(step, [&](const StepMutant& mutant) {
      kinds.emplace(to_string(mutant.mutation));
      const World world{step.measures, mutant.ranks};
      const std::vector<Diagnostic> faults = check_step(world, shape);
      ASSERT_FALSE(faults.empty()) << name_of(shape) << ": " << to_string(mutant, step);
      EXPECT_THAT(to_grid(world, shape, &faults[0]), testing::HasSubstr("<-- HERE"));
    });
  }
  for (const char* name : {"move left out", "move back early", "update in flight", "other buffer",
                           "buffer released"}) {
    EXPECT_TRUE(kinds.contains(name)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, StepMutantsOnMesh,
                         testing::Range(std::size_t{0}, small_meshes().size()));

TEST(StepMutants, AreFoundByTheirPlace) {
  const StepProgram step = build_step(small_step({.dp = 2, .tp = 2}, 1, 2, true));
  int place = 0;
  for_each_mutant(step, [&](const StepMutant& mutant) {
    const StepMutant other = mutant_at(step, place++);
    EXPECT_EQ(to_string(other, step), to_string(mutant, step));
    EXPECT_EQ(other.ranks, mutant.ranks) << to_string(mutant, step);
  });
  EXPECT_EQ(count_mutants(step), place);
}

TEST(StepMutants, AreOfAllKindsAndShown) {
  std::set<std::string> kinds;
  for (const int zero : {0, 1, 3}) {
    const StepShape shape = small_step({.dp = 2, .tp = 2}, zero, 2, false);
    const StepProgram step = build_step(shape);
    for_each_mutant(step, [&](const StepMutant& mutant) {
      kinds.emplace(to_string(mutant.mutation));
      const World world{step.measures, mutant.ranks};
      const std::vector<Diagnostic> faults = check_step(world, shape);
      ASSERT_FALSE(faults.empty()) << to_string(mutant, step);
      EXPECT_THAT(to_grid(world, shape, &faults[0]),
                  testing::HasSubstr("<-- HERE rank " + std::to_string(faults[0].rank) + ": " +
                                     faults[0].text));
    });
  }
  EXPECT_EQ(kinds.size(), 11U);
}

}  // namespace
}  // namespace armillary::plan::step
