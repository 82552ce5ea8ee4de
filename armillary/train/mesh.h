// mesh.h: the axes of a mesh (core/mesh_shape.h) that the trainer uses: cp, the ranks that share
// the tokens of each sequence.
#pragma once

#include "armillary/core/mesh_shape.h"

namespace armillary::train {

/// @throws InvalidArgument if pp, dp or tp, which are not built yet, are not 1.
void check_built(const MeshShape& shape);

}  // namespace armillary::train
