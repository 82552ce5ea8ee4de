#include "armillary/train/mesh.h"

#include "armillary/core/error.h"

namespace armillary::train {
namespace {

/// An axis of the mesh, as errors name it.
struct Axis {
  const char* name;
  int size;
  bool built;
};

}  // namespace

void check_mesh(const MeshShape& shape, int world) {
  const Axis axes[] = {{"pp", shape.pp, false},
                       {"dp", shape.dp, false},
                       {"cp", shape.cp, true},
                       {"tp", shape.tp, false}};
  // Every axis by itself: at least 1, and 1 if it is not built.
  for (const Axis& axis : axes) {
    if (axis.size < 1 || (axis.size > 1 && !axis.built)) {
      fail<InvalidArgument>("mesh: {} {}{}; {} is required; nearest: {} 1", axis.name, axis.size,
                            axis.built ? "" : ", an axis that is not built yet",
                            axis.built ? "at least 1" : "1", axis.name);
    }
  }
  // The other axes are 1 here, so the product is cp.
  if (shape.cp != world) {
    fail<InvalidArgument>(
        "mesh: pp {} x dp {} x cp {} x tp {} is {} ranks; a product of {}, the world, is required; "
        "nearest: cp {}",
        shape.pp, shape.dp, shape.cp, shape.tp, shape.cp, world, world);
  }
}

Mesh::Mesh(comm::Communicator& comm, const MeshShape& shape) : comm_(comm) {
  check_mesh(shape, comm.world());
}

}  // namespace armillary::train
