// types.h: what a value means along each axis of the mesh. Collectives are the only conversions;
// no op reads a partial value unless it is linear.
//
//                 dp, cp, copies             tp
//   parameters    replicated                 sharded (Split), else replicated
//   borders       sharded                    sharded with sequence_parallel, else replicated
//   gradients     partial                    sharded (Split), partial (Summed), replicated (Alike)
//
// Shared values are sharded along tp, and along the sharers as Summed ones. Experts are sharded
// along ep, whatever axes it has parts of, and their gradients partial along all other axes.
//
// A border is what one unit hands to the next. With ZeRO, parameters and summed gradients are
// stored sharded over the replicas; that is storage (StepTables::own_shard), not meaning.
#pragma once

#include <array>

#include "armillary/plan/step/shape.h"

namespace armillary::plan::step {

enum class AxisType : std::uint8_t {
  Replicated,  ///< The same values on all ranks, with equal gradients.
  Sharded,     ///< Each rank has its part.
  Partial,     ///< The sum over the axis is meant.
};

/// By number of the axis' bit. Along an axis of 1 everything is replicated.
struct MeshType {
  std::array<AxisType, kStepAxes> along{};
  AxisType operator[](MeshAxis axis) const { return along[static_cast<std::size_t>(axis)]; }
  bool operator==(const MeshType&) const = default;
};

/// The gradient of a value that is used on data: partial if the value is replicated and the data
/// sharded, else of the value's own type. Requires types that are not partial.
AxisType gradient_type(AxisType value, AxisType data);

MeshType parameter_type(const StepTables& tables, TpUse use);
/// Activations between units, and their gradients.
MeshType border_type(const StepTables& tables);
/// Gradients of parameters before any sum.
MeshType gradient_type(const StepTables& tables, TpUse use);
/// A rank's share of the loss, a sum over its tokens.
MeshType loss_type(const StepTables& tables);

/// The axes along which a value is of this type.
AxisSet axes_of(const MeshType& type, AxisType along);
/// `dp, cp partial; tp sharded`, or `replicated`.
std::string to_string(const MeshType& type);

}  // namespace armillary::plan::step
