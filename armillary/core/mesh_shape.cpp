#include "armillary/core/mesh_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"

namespace armillary {
namespace {

/// "pp 1 x dp 2 x cp 2 x tp 1".
std::string sizes_of(const MeshShape& shape) {
  return fmt::format("pp {} x dp {} x cp {} x tp {}", shape.pp, shape.dp, shape.cp, shape.tp);
}

/// The nearest sizes with a product of `world`: cp alone is another if the other axes allow it.
/// Otherwise pp, dp and tp become divisors of what is left, one after the other, and cp takes the
/// rest.
std::string nearest_mesh(const MeshShape& shape, int world) {
  MeshShape nearest = shape;
  int rest = world;
  for (int* axis : {&nearest.pp, &nearest.dp, &nearest.tp}) {
    *axis = static_cast<int>(nearest_divisor(rest, *axis));
    rest /= *axis;
  }
  nearest.cp = rest;
  const bool only_cp = nearest.pp == shape.pp && nearest.dp == shape.dp && nearest.tp == shape.tp;
  return only_cp ? fmt::format("cp {}", rest) : sizes_of(nearest);
}

void check_order(const MeshShape& shape) {
  std::string order;
  for (const MeshAxis axis : shape.order) {
    order += fmt::format("{}{}", order.empty() ? "" : ", ", to_string(axis));
  }
  for (const MeshAxis axis : kMeshAxes) {
    const auto times = std::ranges::count(shape.order, axis);
    if (times == 1) continue;
    fail<InvalidArgument>(
        "mesh: the order {} names {} {} times; each axis once is required; "
        "nearest: tp, cp, dp, pp",
        order, to_string(axis), times);
  }
}

}  // namespace

std::string_view to_string(MeshAxis axis) {
  constexpr std::array<std::string_view, 4> kNames{"pp", "dp", "cp", "tp"};
  return kNames[static_cast<std::size_t>(axis)];
}

int MeshShape::size(MeshAxis axis) const {
  return std::array{pp, dp, cp, tp}[static_cast<std::size_t>(axis)];
}

void check_mesh(const MeshShape& shape, int world) {
  for (const MeshAxis axis : kMeshAxes) {
    if (shape.size(axis) >= 1) continue;
    const std::string_view name = to_string(axis);
    fail<InvalidArgument>("mesh: {} {}; at least 1 is required; nearest: {} 1", name,
                          shape.size(axis), name);
  }
  check_order(shape);
  const std::int64_t product = checked_product("mesh", {shape.pp, shape.dp, shape.cp, shape.tp});
  if (product == world) return;
  fail<InvalidArgument>(
      "mesh: {} is {} ranks; a product of {}, the world, is required; nearest: {}", sizes_of(shape),
      product, world, nearest_mesh(shape, world));
}

int mesh_index(const MeshShape& shape, int rank, MeshAxis axis) {
  for (const MeshAxis inner : shape.order) {
    if (inner == axis) break;
    rank /= shape.size(inner);
  }
  return rank % shape.size(axis);
}

}  // namespace armillary
