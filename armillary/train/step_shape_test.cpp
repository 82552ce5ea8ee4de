// step_shape_test.cpp: the steps of recipes are proved, with the numbers of their models.
#include "armillary/train/step_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "armillary/core/error.h"
#include "armillary/plan/step/check_step.h"
#include "armillary/plan/step/step_program.h"
#include "armillary/plan/step/storage.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

plan::step::StepShape shape_of(const Recipe& recipe) {
  return step_shape_of(*make_model(recipe), recipe.parallelism, recipe.training);
}

TEST(StepShape, HasTheParametersOfTheModel) {
  Recipe recipe = small_recipe();
  recipe.model.enable_weight_tying = true;
  recipe.training.global_batch_size = 6;
  recipe.parallelism.data_parallel_shard_degree = 2;
  const plan::step::StepShape shape = shape_of(recipe);
  ASSERT_EQ(shape.units.size(), 4U);
  EXPECT_EQ(shape.microbatches, 3);
  recipe.training.local_batch_size = 3;
  EXPECT_EQ(shape_of(recipe).microbatches, 1);
  EXPECT_EQ(shape.zero, 1);
  EXPECT_THAT(shape.units.back().uses, ElementsAre(0));
  std::int64_t values = 0;
  for (const auto& unit : shape.units) values += unit.split + unit.summed;
  EXPECT_EQ(values, make_model(recipe)->cost().parameters);
}

TEST(StepShape, StepsOfRecipesAreProved) {
  for (const int tp : {1, 2}) {
    for (std::int64_t zero = 0; zero <= 3; ++zero) {
      Recipe recipe = small_recipe();
      recipe.training.global_batch_size = 4;
      recipe.parallelism.data_parallel_shard_degree = 2;
      recipe.parallelism.context_parallel_degree = 2;
      recipe.parallelism.tensor_parallel_degree = tp;
      recipe.parallelism.zero = zero;
      const plan::step::StepShape shape = shape_of(recipe);
      const plan::step::StepProgram step = plan::step::build_step(shape);
      EXPECT_TRUE(plan::step::check_step(step.world(), shape).empty()) << tp << ' ' << zero;
    }
  }
}

TEST(StepShape, WhatProgramsCannotSayIsRefused) {
  Recipe recipe = small_recipe();
  recipe.training.global_batch_size = 2;
  recipe.parallelism.data_parallel_replicate_degree = 2;
  EXPECT_THAT([&] { shape_of(recipe); },
              ThrowsMessage<InvalidArgument>(HasSubstr("data_parallel_replicate_degree = 2")));
  recipe.parallelism.data_parallel_replicate_degree = 1;
  recipe.parallelism.tensor_parallel_degree = 4;
  EXPECT_THAT([&] { shape_of(recipe); },
              ThrowsMessage<InvalidArgument>(HasSubstr("nearest: tensor_parallel_degree = 2")));
}

}  // namespace
}  // namespace armillary::train
