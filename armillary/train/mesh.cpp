// mesh.cpp: an axis that nothing divides work along is refused. Its ranks would all do the same
// work, and the run would look right.
#include "armillary/train/mesh.h"

#include "armillary/core/error.h"

namespace armillary::train {

void check_built(const MeshShape& shape) {
  for (const MeshAxis axis : {MeshAxis::Pp, MeshAxis::Dp, MeshAxis::Tp}) {
    if (shape.size(axis) == 1) continue;
    const std::string_view name = to_string(axis);
    fail<InvalidArgument>(
        "mesh: {} {}, an axis that is not built yet; 1 is required; nearest: {} 1", name,
        shape.size(axis), name);
  }
}

}  // namespace armillary::train
