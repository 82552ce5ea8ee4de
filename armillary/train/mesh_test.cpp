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
  expect_mesh_refused({.dp = 3, .cp = 2},
                      "mesh: dp 3, an axis that is not built yet; 1 is required; nearest: dp 1");
  expect_mesh_refused({.tp = 0},
                      "mesh: tp 0, an axis that is not built yet; 1 is required; nearest: tp 1");
}

}  // namespace
}  // namespace armillary::train
