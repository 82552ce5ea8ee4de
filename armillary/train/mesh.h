// mesh.h: ranks as a grid of named axes, each cutting something else of a training step.
//
//   pp  layers                     not built yet
//   dp  sequences of the batch     not built yet
//   cp  tokens of each sequence    attention runs over it
//   tp  matrices of each layer     not built yet
#pragma once

#include "armillary/comm/communicator.h"

namespace armillary::train {

struct MeshShape {
  int pp = 1;
  int dp = 1;
  int cp = 1;
  int tp = 1;
};

/// @throws InvalidArgument if an axis is below 1, one that is not built yet is above 1, or the
/// product of the axes is not `world`; with the nearest legal choice.
void check_mesh(const MeshShape& shape, int world);

/// The place of one rank in the grid, and its communicator along each axis that is built.
class Mesh {
 public:
  /// `comm` has all ranks of the mesh and must outlive it. @throws InvalidArgument as check_mesh.
  Mesh(comm::Communicator& comm, const MeshShape& shape);

  comm::Communicator& cp() const { return comm_; }

 private:
  comm::Communicator& comm_;
};

}  // namespace armillary::train
