// text_test.cpp: a step as its table and grid.
#include "armillary/plan/step/text.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "armillary/plan/step/step_program.h"

namespace armillary::plan::step {
namespace {

using testing::HasSubstr;

TEST(StepGrid, HasTypesOpsAndThePlaceOfAFault) {
  const StepShape shape{.units = {{.name = "embedding", .split = 4}, {.name = "head", .split = 6}},
                        .mesh = {.dp = 2}};
  const StepProgram step = build_step(shape);
  const Diagnostic at{.rank = 1, .op = 0, .rule = "undefined", .text = "no weight"};
  const std::string grid = to_grid(step.world(), shape, &at);
  EXPECT_THAT(grid, HasSubstr("0     embedding                                  4  dp partial\n"));
  EXPECT_THAT(grid, HasSubstr("borders: dp sharded; bytes of rank 0 at rest: 160\n"));
  EXPECT_THAT(grid, HasSubstr("\nstep 0    forward(weight0 x0)"));
  EXPECT_THAT(grid, HasSubstr("   <-- HERE rank 1: no weight\n"));
  EXPECT_THAT(grid, HasSubstr("forward(weight1 x1) loss(x2)"));
  EXPECT_THAT(grid, HasSubstr("backward(weight1 (x1,dx2))"));
  EXPECT_THAT(grid, HasSubstr("reduce_in_place(grad1 over r{0,1})"));
  EXPECT_THAT(grid, HasSubstr("gather_in_place(grad1 over r{0,1})"));
  EXPECT_THAT(grid, HasSubstr("norm(grad0) norm(grad1)"));
  EXPECT_THAT(grid, HasSubstr("\nstep 8    update(weight1)"));
}

TEST(StepGrid, AroundAFaultHasTheLinesBesideItAlone) {
  StepShape shape{.units = {}, .mesh = {.dp = 2}};
  for (int i = 0; i < 12; ++i) shape.units.push_back({.name = fmt::format("u{}", i), .split = 4});
  const StepProgram step = build_step(shape);
  Diagnostic fault{.rank = 1, .op = 12, .rule = "undefined", .text = "no weight"};
  const std::string lines = grid_around(step.world(), shape, fault);
  EXPECT_THAT(lines, HasSubstr("   <-- HERE rank 1: no weight\n"));
  EXPECT_EQ(std::ranges::count(lines, '\n'), 14);
  EXPECT_THAT(to_grid(step.world(), shape, &fault), HasSubstr(lines));
  fault.op = 0;
  EXPECT_THAT(grid_around(step.world(), shape, fault),
              HasSubstr("   <-- HERE rank 1: no weight\n"));
}

TEST(StepGrid, ShowsTheMovesOfStateOnTheHost) {
  const StepShape shape{.units = {{.name = "embedding", .split = 4},
                                  {.name = "layer", .split = 5},
                                  {.name = "head", .split = 6}},
                        .mesh = {.dp = 2},
                        .state_on_host = true};
  const StepProgram step = build_step(shape);
  const std::string grid = to_grid(step.world(), shape);
  EXPECT_THAT(grid, HasSubstr("bytes of rank 0 at rest: 240, of which on the host: 120\n"));
  EXPECT_THAT(grid, HasSubstr("move(buffer0)"));
  EXPECT_THAT(grid, HasSubstr("move(buffer1) update(weight0)"));
  EXPECT_THAT(grid, HasSubstr("move(state0) move(buffer2) update(weight1)"));
  EXPECT_THAT(grid, HasSubstr("move(state1) update(weight2)"));
  EXPECT_THAT(grid, HasSubstr("move(state2)"));
}

TEST(StepGrid, ShowsShardsAndMicrobatches) {
  const StepShape shape{.units = {{.name = "embedding", .split = 4}, {.name = "head", .split = 6}},
                        .mesh = {.cp = 2},
                        .microbatches = 2,
                        .zero = 3};
  const StepProgram step = build_step(shape);
  const std::string grid = to_grid(step.world(), shape);
  EXPECT_THAT(grid, HasSubstr("gather(weight0 over r{0,1})"));
  EXPECT_THAT(grid, HasSubstr("forward(weight0 x0[1:2])"));
  EXPECT_THAT(grid, HasSubstr("reduce_scatter(grad1[1:2] over r{0,1})"));
  EXPECT_THAT(grid, HasSubstr("release(grad1)"));
  EXPECT_THAT(grid, HasSubstr("update(weight0[0:1])"));
}

}  // namespace
}  // namespace armillary::plan::step
