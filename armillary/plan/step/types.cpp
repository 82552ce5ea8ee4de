#include "armillary/plan/step/types.h"

#include <fmt/format.h>

namespace armillary::plan::step {
namespace {

/// Types along the axes of a step.
struct TypesAlong {
  AxisType replicas;  ///< dp, cp and copies.
  AxisType tp;
  AxisType sharers;
};

MeshType mesh_type(const StepTables& tables, const TypesAlong& types) {
  MeshType type;
  const AxisSet replicas = tables.replica_axes() | tables.copies_axis();
  const AxisSet sharers = tables.same_axes(TpUse::Shared);
  for (std::size_t axis = 0; axis < kStepAxes; ++axis) {
    const AxisSet here = 1U << axis;
    if ((here & replicas) != 0) type.along[axis] = types.replicas;
    if ((here & tables.tp_axis()) != 0) type.along[axis] = types.tp;
    if ((here & sharers) != 0) type.along[axis] = types.sharers;
  }
  return type;
}

}  // namespace

AxisType gradient_type(AxisType value, AxisType data) {
  const bool partial = value == AxisType::Replicated && data == AxisType::Sharded;
  return partial ? AxisType::Partial : value;
}

MeshType parameter_type(const StepTables& tables, TpUse use) {
  using enum AxisType;
  if (use == TpUse::Experts) {
    MeshType type;
    for (std::size_t axis = 0; axis < kStepAxes; ++axis) {
      if ((tables.ep_axes() >> axis & 1) != 0) type.along[axis] = Sharded;
    }
    return type;
  }
  const bool splits = use == TpUse::Split || use == TpUse::Shared;
  return mesh_type(tables, {Replicated, splits ? Sharded : Replicated,
                            use == TpUse::Split ? Sharded : Replicated});
}

MeshType border_type(const StepTables& tables) {
  using enum AxisType;
  const AxisType tp = tables.shape().sequence_parallel ? Sharded : Replicated;
  return mesh_type(tables, {Sharded, tp, tp});
}

// Data along tp is what the use says: values that are summed meet tokens of each rank's own.
MeshType gradient_type(const StepTables& tables, TpUse use) {
  const MeshType value = parameter_type(tables, use);
  const bool own = use == TpUse::Summed || use == TpUse::Shared || use == TpUse::Experts;
  const AxisType along_tp = own ? AxisType::Sharded : AxisType::Replicated;
  const MeshType data = mesh_type(tables, {AxisType::Sharded, along_tp, along_tp});
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
  for (std::size_t axis = 0; axis < kStepAxes; ++axis) {
    if (type.along[axis] == along) axes |= 1U << axis;
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
