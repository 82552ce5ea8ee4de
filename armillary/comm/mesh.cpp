// mesh.cpp: groups along axes, split off at their first use and kept. The set of axes longer than 1
// is the key of a group.
#include "armillary/comm/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/split_communicator.h"
#include "armillary/comm/together.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// Sizes and order as they travel.
using Record = std::array<std::int64_t, 8>;

Record record_of(const MeshShape& shape) {
  Record record{shape.pp, shape.dp, shape.cp, shape.tp};
  for (std::size_t i = 0; i < shape.order.size(); ++i) {
    record[4 + i] = static_cast<std::int64_t>(shape.order[i]);
  }
  return record;
}

/// "pp 1 x dp 2 x cp 2 x tp 1 in the order tp, cp, dp, pp".
std::string text_of(const Record& record) {
  const auto name = [&](std::size_t i) { return to_string(static_cast<MeshAxis>(record[4 + i])); };
  return fmt::format("pp {} x dp {} x cp {} x tp {} in the order {}, {}, {}, {}", record[0],
                     record[1], record[2], record[3], name(0), name(1), name(2), name(3));
}

}  // namespace

Mesh::Mesh(Communicator& world, const MeshShape& shape) : world_(world), shape_(shape) {
  check_mesh(shape, world.world());
}

Communicator& Mesh::over(std::initializer_list<MeshAxis> axes) const {
  unsigned view = 0;
  unsigned whole = 0;
  for (const MeshAxis axis : kMeshAxes) {
    if (size(axis) == 1) continue;
    const unsigned bit = 1U << static_cast<unsigned>(axis);
    whole |= bit;
    if (std::ranges::count(axes, axis) > 0) view |= bit;
  }
  // Axes of size 1 count for neither, so cp alone may be the whole world, which needs no split.
  if (view == whole) return world_;
  std::unique_ptr<Communicator>& group = groups_[view];
  if (group) return *group;
  if (view == 0) {
    group = group_of_one(world_);
    return *group;
  }
  agree_on_shape();
  // The color is the place of the rank along the other axes.
  int color = 0;
  for (const MeshAxis axis : kMeshAxes) {
    if ((view & 1U << static_cast<unsigned>(axis)) == 0) color = color * size(axis) + index(axis);
  }
  group = world_.split(color, world_.rank());
  return *group;
}

void Mesh::agree_on_shape() const {
  if (agreed_) return;
  // Ranks with different shapes would split into different groups and wait for each other.
  Record mine = record_of(shape_);
  std::vector<Record> all(static_cast<std::size_t>(world_.world()));
  all_gather(world_, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  const auto other = std::ranges::find_if(all, [&](const Record& r) { return r != all[0]; });
  if (other != all.end()) {
    meet(world_);
    fail<InvalidArgument>("mesh: rank 0 has {}, rank {} has {}; one shape is required on all ranks",
                          text_of(all[0]), other - all.begin(), text_of(*other));
  }
  agreed_ = true;
}

}  // namespace armillary::comm
