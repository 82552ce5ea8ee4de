#include "armillary/train/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "armillary/core/error.h"

namespace armillary::train {
namespace {

TEST(Mesh, AxesThatAreNotBuiltAreRefused) {
  const auto expect_mesh_refused = [](const MeshShape& shape, const char* text) {
    EXPECT_THAT([&] { check_built(shape); }, testing::ThrowsMessage<InvalidArgument>(text));
  };
  check_built({.cp = 3});
  expect_mesh_refused({.pp = 2},
                      "mesh: pp 2, an axis that is not built yet; 1 is required; nearest: pp 1");
  check_built({.dp = 3, .cp = 2});
  check_built({.cp = 2, .tp = 2});
}

TEST(Mesh, ABatchIsSharedEqually) {
  const auto expect_batch_refused = [](const TrainingOptions& training, const char* text) {
    EXPECT_THAT([&] { check_batch({.dp = 3, .cp = 2}, training); },
                testing::ThrowsMessage<InvalidArgument>(text));
  };
  check_batch({.dp = 3, .cp = 2}, {.global_batch_size = 6});
  expect_batch_refused(
      {.global_batch_size = 8},
      "recipe: training.global_batch_size = 8 on 3 ranks along dp; a multiple of 3 "
      "is required; nearest: 6 or 9");
  expect_batch_refused(
      {.global_batch_size = 1},
      "recipe: training.global_batch_size = 1 on 3 ranks along dp; a multiple of 3 "
      "is required; nearest: 3");
  check_batch({.dp = 3, .cp = 2}, {.global_batch_size = 12, .local_batch_size = 2});
  expect_batch_refused(
      {.global_batch_size = 15, .local_batch_size = 2},
      "recipe: training.global_batch_size = 15 on 3 ranks along dp, each with local_batch_size = 2 "
      "in one pass; a multiple of 6 is required; nearest: training.global_batch_size = 12 or 18, "
      "or training.local_batch_size = 1 or 5");
  expect_batch_refused(
      {.global_batch_size = 36, .local_batch_size = 5},
      "recipe: training.global_batch_size = 36 on 3 ranks along dp, each with local_batch_size = 5 "
      "in one pass; a multiple of 15 is required; nearest: training.global_batch_size = 30 or 45, "
      "or training.local_batch_size = 4 or 6");
  // The older meaning of the key.
  expect_batch_refused(
      {.global_batch_size = 1, .local_batch_size = 4},
      "recipe: training.global_batch_size = 1 on 3 ranks along dp, each with local_batch_size = 4 "
      "in one pass; a multiple of 12 is required; nearest: training.global_batch_size = 12; "
      "what earlier recipes call local_batch_size is global_batch_size");
}

TEST(Mesh, MicrobatchesAreThePassesOfARankAlongDp) {
  const MeshShape shape{.dp = 3, .cp = 2};
  EXPECT_EQ(microbatches_of(shape, {.global_batch_size = 12}), 4);
  EXPECT_EQ(microbatches_of(shape, {.global_batch_size = 12, .local_batch_size = 2}), 2);
  EXPECT_EQ(microbatches_of(shape, {.global_batch_size = 12, .local_batch_size = 4}), 1);
}

}  // namespace
}  // namespace armillary::train
