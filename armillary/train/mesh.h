// mesh.h: ranks as a mesh of named axes. Each axis splits another part of a training step:
//
//   pp  layers                     not built yet
//   dp  sequences of the batch     not built yet
//   cp  tokens of each sequence    attention runs over it
//   tp  matrices of each layer     not built yet
#pragma once

#include "armillary/comm/communicator.h"

namespace armillary::train {

/// Ranks along each axis; their product is the world.
struct MeshShape {
  int pp = 1;
  int dp = 1;
  int cp = 1;
  int tp = 1;
};

/// Checks that a mesh of this shape can be made of `world` ranks.
/// @throws InvalidArgument if an axis is below 1, one that is not built yet is above 1, or the
/// product of the axes is not `world`; with the nearest legal choice.
void check_mesh(const MeshShape& shape, int world);

/// One rank's communicators along the axes that are built. Threads: that of the rank.
class Mesh {
 public:
  /// `comm` holds all ranks of the mesh and must outlive it. @throws InvalidArgument as check_mesh.
  Mesh(comm::Communicator& comm, const MeshShape& shape);

  /// The group that shares the tokens of each sequence.
  comm::Communicator& cp() const { return comm_; }

 private:
  comm::Communicator& comm_;
};

}  // namespace armillary::train
