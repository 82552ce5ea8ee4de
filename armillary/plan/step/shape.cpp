// Shapes and what follows from them. Units are walked once: each makes its parts, and an entry for
// every unit whose values it uses.
#include "armillary/plan/step/shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"

namespace armillary::plan::step {
namespace {

std::int64_t values_of(const UnitShape& unit) {
  return unit.split + unit.summed + unit.alike;
}

void check_unit(const StepShape& shape, int index) {
  const UnitShape& unit = shape.units[index];
  for (const std::int64_t values : {unit.split, unit.summed, unit.alike}) {
    if (values >= 0 && values < std::int64_t{1} << 56) continue;
    fail<InvalidArgument>("step: unit {} has {} values; 0 to 2^56 are required; nearest: {}",
                          unit.name, values, values < 0 ? 0 : (std::int64_t{1} << 56) - 1);
  }
  int before = -1;
  for (const int other : unit.uses) {
    const bool there = other > before && other < static_cast<int>(shape.units.size());
    if (!there || other == index || values_of(shape.units[other]) == 0) {
      fail<InvalidArgument>(
          "step: unit {} uses values of unit {}; other units that have values, ascending below {}, "
          "are required",
          unit.name, other, shape.units.size());
    }
    before = other;
  }
  if (values_of(unit) == 0 && unit.uses.empty()) {
    fail<InvalidArgument>("step: unit {} uses no values; at least 1 is required", unit.name);
  }
}

}  // namespace

void check_shape(const StepShape& shape) {
  const std::int64_t ranks =
      checked_product("step", {shape.mesh.pp, shape.mesh.dp, shape.mesh.cp, shape.mesh.tp});
  if (ranks > std::numeric_limits<int>::max()) {
    fail<InvalidArgument>("step: a mesh of {} ranks; fewer than 2^31 are required", ranks);
  }
  check_mesh(shape.mesh, static_cast<int>(ranks));
  if (shape.mesh.pp != 1) {
    fail<InvalidArgument>("step: pp {}; 1 is required, a pipeline is no part of a step yet",
                          shape.mesh.pp);
  }
  if (shape.zero < 0 || shape.zero > 3) {
    fail<InvalidArgument>("step: ZeRO stage {}; 0 to 3 is required; nearest: {}", shape.zero,
                          std::clamp(shape.zero, 0, 3));
  }
  if (shape.microbatches < 1) {
    fail<InvalidArgument>("step: {} microbatches; at least 1 is required", shape.microbatches);
  }
  if (shape.units.empty()) fail<InvalidArgument>("step: 0 units; at least 1 is required");
  for (int unit = 0; unit < static_cast<int>(shape.units.size()); ++unit) check_unit(shape, unit);
  const bool splits =
      std::ranges::any_of(shape.units, [](const UnitShape& u) { return u.split > 0; });
  if (shape.mesh.tp > 1 && !splits) {
    fail<InvalidArgument>("step: tp {}, but no unit has values that are split; tp 1 is required",
                          shape.mesh.tp);
  }
}

std::string axis_names(AxisSet axes) {
  std::string names;
  for (const MeshAxis axis : kMeshAxes) {
    if ((axes & bit(axis)) == 0) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", to_string(axis));
  }
  return names;
}

StepTables::StepTables(const StepShape& shape) : shape_(shape) {
  check_shape(shape);
  replicas_ = shape.mesh.dp * shape.mesh.cp;
  // Parts, and which unit uses which.
  users_.resize(shape.units.size());
  for (int unit = 0; unit < units(); ++unit) {
    const UnitShape& of_unit = shape.units[unit];
    const std::int64_t all = values_of(of_unit);
    const auto add_part = [&](TpUse use, std::int64_t values) {
      if (values > 0) parts_.push_back({unit, use, values});
    };
    add_part(TpUse::Split, shape.mesh.tp == 1 ? all : of_unit.split);
    if (shape.mesh.tp > 1) {
      add_part(TpUse::Summed, of_unit.summed);
      add_part(TpUse::Alike, of_unit.alike);
    }
    std::vector<int>& used = used_.emplace_back(of_unit.uses);
    if (all > 0) used.insert(std::ranges::lower_bound(used, unit), unit);
    for (const int other : used) users_[other].push_back(unit);
  }
  // Groups.
  for (AxisSet axes = 1; axes < 1U << kMeshAxes.size(); ++axes) {
    if (with_ranks(axes) == axes) axis_sets_.push_back(axes);
  }
  for (Rank rank = 0; rank < shape.mesh.ranks(); ++rank) {
    const std::vector<Rank> replicas = group(replica_axes(), rank);
    replica_.push_back(static_cast<int>(std::ranges::find(replicas, rank) - replicas.begin()));
  }
}

BlockIds StepTables::parts_of(int unit) const {
  BlockIds ids;
  for (int part = 0; part < static_cast<int>(parts_.size()); ++part) {
    if (parts_[part].unit == unit) ids.push_back(part);
  }
  return ids;
}

std::int64_t StepTables::values(int part, Rank rank, const Heads& shards) const {
  const StepPart& of = parts_[part];
  std::int64_t whole = of.values;
  if (of.use == TpUse::Split) {
    const int tp = shape_.mesh.tp;
    const int index = tp_index(rank);
    whole = piece_begin(of.values, tp, index + 1) - piece_begin(of.values, tp, index);
  }
  return piece_begin(whole, replicas_, shards.end) - piece_begin(whole, replicas_, shards.begin);
}

AxisSet StepTables::with_ranks(AxisSet axes) const {
  AxisSet result = 0;
  for (const MeshAxis axis : kMeshAxes) {
    if (shape_.mesh.size(axis) > 1) result |= axes & bit(axis);
  }
  return result;
}

std::vector<Rank> StepTables::group(AxisSet axes, Rank rank) const {
  std::vector<Rank> ranks;
  for (Rank other = 0; other < shape_.mesh.ranks(); ++other) {
    const bool differs = std::ranges::any_of(kMeshAxes, [&](MeshAxis axis) {
      return (axes & bit(axis)) == 0 &&
             mesh_index(shape_.mesh, other, axis) != mesh_index(shape_.mesh, rank, axis);
    });
    if (!differs) ranks.push_back(other);
  }
  return ranks;
}

}  // namespace armillary::plan::step
