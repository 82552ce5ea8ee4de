#include "armillary/plan/step/types.h"

#include <fmt/format.h>

namespace armillary::plan::step {
namespace {

/// The type of all axes of more than one rank: `replicas` along dp and cp, `tp` along tp.
MeshType mesh_type(const StepTables& tables, AxisType replicas, AxisType tp) {
  MeshType type;
  for (const MeshAxis axis : kMeshAxes) {
    if (tables.with_ranks(bit(axis)) == 0 || axis == MeshAxis::Pp) continue;
    type.along[static_cast<std::size_t>(axis)] = axis == MeshAxis::Tp ? tp : replicas;
  }
  return type;
}

}  // namespace

AxisType gradient_type(AxisType value, AxisType data) {
  const bool partial = value == AxisType::Replicated && data == AxisType::Sharded;
  return partial ? AxisType::Partial : value;
}

MeshType parameter_type(const StepTables& tables, TpUse use) {
  return mesh_type(tables, AxisType::Replicated,
                   use == TpUse::Split ? AxisType::Sharded : AxisType::Replicated);
}

MeshType border_type(const StepTables& tables) {
  const bool own_tokens = tables.shape().sequence_parallel;
  return mesh_type(tables, AxisType::Sharded,
                   own_tokens ? AxisType::Sharded : AxisType::Replicated);
}

// Data along tp is what the use says: values that are summed meet tokens of each rank's own.
MeshType gradient_type(const StepTables& tables, TpUse use) {
  const MeshType value = parameter_type(tables, use);
  const MeshType data = mesh_type(tables, AxisType::Sharded,
                                  use == TpUse::Summed ? AxisType::Sharded : AxisType::Replicated);
  MeshType type;
  for (std::size_t axis = 0; axis < type.along.size(); ++axis) {
    type.along[axis] = gradient_type(value.along[axis], data.along[axis]);
  }
  return type;
}

MeshType loss_type(const StepTables& tables) {
  MeshType type = border_type(tables);
  for (AxisType& along : type.along) along = gradient_type(AxisType::Replicated, along);
  return type;
}

AxisSet axes_of(const MeshType& type, AxisType along) {
  AxisSet axes = 0;
  for (const MeshAxis axis : kMeshAxes) {
    if (type[axis] == along) axes |= bit(axis);
  }
  return axes;
}

std::string to_string(const MeshType& type) {
  std::string text;
  const auto add = [&](AxisType along, std::string_view name) {
    const AxisSet axes = axes_of(type, along);
    if (axes == 0) return;
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", axis_names(axes), name);
  };
  add(AxisType::Partial, "partial");
  add(AxisType::Sharded, "sharded");
  return text.empty() ? "replicated" : text;
}

}  // namespace armillary::plan::step
