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
      "is required; nearest: 6");
  expect_batch_refused(
      {.global_batch_size = 1},
      "recipe: training.global_batch_size = 1 on 3 ranks along dp; a multiple of 3 "
      "is required; nearest: 3");
  expect_batch_refused(
      {.global_batch_size = 3, .local_batch_size = 4},
      "recipe: training.local_batch_size = 4, sequences of a dp rank in one pass; 1 "
      "is required, others are not built yet; nearest: training.global_batch_size "
      "= 4, as this key was called before");
}

}  // namespace
}  // namespace armillary::train
