// mesh_shape_test.cpp: places of ranks in a mesh, and shapes that are refused with the nearest one.
#include "armillary/core/mesh_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "armillary/core/error.h"

namespace armillary {
namespace {

using enum MeshAxis;

void expect_mesh_refused(const MeshShape& shape, int world, const char* text) {
  EXPECT_THAT([&] { check_mesh(shape, world); }, testing::ThrowsMessage<InvalidArgument>(text));
}

TEST(MeshShape, PutsTheFirstAxisOnNeighbouringRanks) {
  const MeshShape shape{.pp = 2, .dp = 3, .cp = 2, .tp = 2};
  check_mesh(shape, 24);
  EXPECT_EQ(mesh_index(shape, 1, Tp), 1);
  EXPECT_EQ(mesh_index(shape, 2, Cp), 1);
  EXPECT_EQ(mesh_index(shape, 4, Dp), 1);
  EXPECT_EQ(mesh_index(shape, 12, Pp), 1);
  EXPECT_EQ(mesh_index(shape, 23, Dp), 2);
  const MeshShape other{.dp = 2, .cp = 3, .order = {Dp, Pp, Tp, Cp}};
  check_mesh(other, 6);
  EXPECT_EQ(mesh_index(other, 1, Dp), 1);
  EXPECT_EQ(mesh_index(other, 2, Cp), 1);
  EXPECT_EQ(mesh_index(other, 5, Cp), 2);
}

TEST(MeshShape, GivesEachRankAPlaceOfItsOwn) {
  for (const std::array<MeshAxis, 4>& order :
       {std::array{Tp, Cp, Dp, Pp}, {Pp, Dp, Cp, Tp}, {Cp, Tp, Pp, Dp}}) {
    const MeshShape shape{.pp = 2, .dp = 3, .cp = 5, .tp = 2, .order = order};
    std::set<std::vector<int>> places;
    for (int rank = 0; rank < shape.ranks(); ++rank) {
      std::vector<int> place;
      for (const MeshAxis axis : kMeshAxes) {
        place.push_back(mesh_index(shape, rank, axis));
        EXPECT_LT(place.back(), shape.size(axis));
      }
      places.insert(place);
    }
    EXPECT_EQ(places.size(), 60U);
  }
}

TEST(MeshShape, IsAsLargeAsTheWorld) {
  expect_mesh_refused({.cp = 2}, 3,
                      "mesh: pp 1 x dp 1 x cp 2 x tp 1 is 2 ranks; a product of 3, the world, is "
                      "required; nearest: cp 3");
  expect_mesh_refused({.dp = 2, .cp = 2}, 8,
                      "mesh: pp 1 x dp 2 x cp 2 x tp 1 is 4 ranks; a product of 8, the world, is "
                      "required; nearest: cp 4");
  expect_mesh_refused({.dp = 4, .cp = 2}, 6,
                      "mesh: pp 1 x dp 4 x cp 2 x tp 1 is 8 ranks; a product of 6, the world, is "
                      "required; nearest: pp 1 x dp 3 x cp 2 x tp 1");
  expect_mesh_refused({.pp = 2147483647, .dp = 2147483647}, 1,
                      "mesh: pp 2147483647 x dp 2147483647 x cp 1 x tp 1 is 4611686014132420609 "
                      "ranks; a product of 1, the world, is required; nearest: pp 1 x dp 1 x cp 1 "
                      "x tp 1");
}

TEST(MeshShape, HasRanksAlongEachAxis) {
  expect_mesh_refused({.cp = 0}, 1, "mesh: cp 0; at least 1 is required; nearest: cp 1");
  expect_mesh_refused({.tp = -2}, 1, "mesh: tp -2; at least 1 is required; nearest: tp 1");
}

TEST(MeshShape, NamesEachAxisOnceInItsOrder) {
  expect_mesh_refused({.order = {Tp, Cp, Cp, Pp}}, 1,
                      "mesh: the order tp, cp, cp, pp names dp 0 times; each axis once is "
                      "required; nearest: tp, cp, dp, pp");
  expect_mesh_refused({.order = {Dp, Dp, Cp, Pp}}, 1,
                      "mesh: the order dp, dp, cp, pp names dp 2 times; each axis once is "
                      "required; nearest: tp, cp, dp, pp");
}

}  // namespace
}  // namespace armillary
