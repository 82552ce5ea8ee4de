// mesh.h: one rank's groups along the axes of a mesh (core/mesh_shape.h).
//
//   dp 2 x cp 2     rank 0 -- rank 1    along(cp): {0, 1}, {2, 3}
//                     |         |       along(dp): {0, 2}, {1, 3}
//                   rank 2 -- rank 3    replicas(): all of them
//
// A group is split off the world when it is first asked for, once for each set of axes; axes of 1
// do not count. All ranks of the mesh ask for a group first at the same point of their program, as
// for any collective. A group of one rank and a group of all cost no split and no lane.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>

#include "armillary/comm/communicator.h"
#include "armillary/core/mesh_shape.h"

namespace armillary::comm {

/// Threads: that of the rank. Failures are those of the world, which all groups share.
class Mesh {
 public:
  /// `world` has all ranks of the mesh and must outlive it. Sends nothing.
  /// @throws InvalidArgument as check_mesh.
  Mesh(Communicator& world, const MeshShape& shape);

  const MeshShape& shape() const { return shape_; }
  int size(MeshAxis axis) const { return shape_.size(axis); }
  /// Index of this rank along an axis.
  int index(MeshAxis axis) const { return mesh_index(shape_, world_.rank(), axis); }

  Communicator& world() const { return world_; }
  /// The ranks that differ from this one in these axes alone, in the order of ranks. Valid as long
  /// as the mesh. Collective over the mesh where the group is new.
  /// @throws InvalidArgument, on all ranks with the same text, if their shapes differ: found when
  /// the first group is split. CommError as Communicator.
  Communicator& over(std::initializer_list<MeshAxis> axes) const;
  Communicator& along(MeshAxis axis) const { return over({axis}); }
  /// The ranks that hold the same parameters: dp x cp. Loss and gradients are summed over them.
  Communicator& replicas() const { return over({MeshAxis::Dp, MeshAxis::Cp}); }

 private:
  /// All ranks compare their shapes.
  void agree_on_shape() const;

  Communicator& world_;
  const MeshShape shape_;
  /// By set of axes, a bit for each that is above 1.
  mutable std::map<unsigned, std::unique_ptr<Communicator>> groups_;
  mutable bool agreed_ = false;
};

}  // namespace armillary::comm
