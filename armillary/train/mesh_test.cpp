#include "armillary/train/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"

namespace armillary::train {
namespace {

void expect_mesh_refused(const MeshShape& shape, int world, const char* text) {
  EXPECT_THAT([&] { check_mesh(shape, world); }, testing::ThrowsMessage<InvalidArgument>(text));
}

TEST(Mesh, IsItsContextParallelAxis) {
  comm::run_ranks(3, [](comm::Communicator& comm) {
    const Mesh mesh(comm, {.cp = 3});
    EXPECT_EQ(mesh.cp().world(), 3);
    EXPECT_EQ(mesh.cp().rank(), comm.rank());
  });
}

TEST(Mesh, AxesThatAreNotBuiltAreRefused) {
  expect_mesh_refused({.pp = 2}, 2,
                      "mesh: pp 2, an axis that is not built yet; 1 is required; nearest: pp 1");
  expect_mesh_refused({.dp = 3, .cp = 2}, 6,
                      "mesh: dp 3, an axis that is not built yet; 1 is required; nearest: dp 1");
  expect_mesh_refused({.tp = 0}, 1,
                      "mesh: tp 0, an axis that is not built yet; 1 is required; nearest: tp 1");
  expect_mesh_refused({.cp = 0}, 1, "mesh: cp 0; at least 1 is required; nearest: cp 1");
}

TEST(Mesh, IsAsLargeAsTheWorld) {
  expect_mesh_refused({.cp = 2}, 3,
                      "mesh: pp 1 x dp 1 x cp 2 x tp 1 is 2 ranks; a product of 3, the world, is "
                      "required; nearest: cp 3");
}

}  // namespace
}  // namespace armillary::train
