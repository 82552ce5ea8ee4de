#include "armillary/train/replica_groups.h"

#include "armillary/core/checked.h"
#include "armillary/core/error.h"

namespace armillary::train {

void check_copies(int dp, const ParallelismOptions& parallelism) {
  const std::int64_t copies = parallelism.data_parallel_replicate_degree;
  if (dp % copies == 0) return;
  fail<InvalidArgument>(
      "mesh: parallelism.data_parallel_replicate_degree = {} of {} ranks along dp; a divisor of "
      "{} is required; nearest: {}",
      copies, dp, dp, nearest_divisor(dp, copies));
}

ReplicaGroups::ReplicaGroups(const comm::Mesh& mesh, const ParallelismOptions& parallelism) {
  comm::Communicator& all = mesh.replicas();
  const std::int64_t copies = parallelism.data_parallel_replicate_degree;
  check_copies(mesh.size(MeshAxis::Dp), parallelism);
  replicas_ = {.sharded = &all,
               .zero = static_cast<int>(parallelism.zero),
               .tp = mesh.size(MeshAxis::Tp) == 1 ? nullptr : &mesh.along(MeshAxis::Tp)};
  // One sum over all is the same if nothing is divided.
  if (copies == 1 || parallelism.zero == 0) return;
  // The copies are the outer ranks along dp, whatever the order of axes.
  const int inner = mesh.size(MeshAxis::Dp) / static_cast<int>(copies);
  const int index = mesh.index(MeshAxis::Dp);
  sharded_ = all.split(index / inner, all.rank());
  copies_ =
      all.split(index % inner * mesh.size(MeshAxis::Cp) + mesh.index(MeshAxis::Cp), all.rank());
  replicas_.sharded = sharded_.get();
  replicas_.copies = copies_.get();
}

}  // namespace armillary::train
