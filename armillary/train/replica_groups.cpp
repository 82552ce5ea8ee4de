#include "armillary/train/replica_groups.h"

#include "armillary/core/checked.h"
#include "armillary/core/error.h"

namespace armillary::train {

ReplicaGroups::ReplicaGroups(const comm::Mesh& mesh, const ParallelismOptions& parallelism) {
  comm::Communicator& all = mesh.replicas();
  const std::int64_t copies = parallelism.data_parallel_replicate_degree;
  const int dp = mesh.size(MeshAxis::Dp);
  if (dp % copies != 0) {
    fail<InvalidArgument>(
        "mesh: parallelism.data_parallel_replicate_degree = {} of {} ranks along dp; a divisor of "
        "{} is required; nearest: {}",
        copies, dp, dp, nearest_divisor(dp, copies));
  }
  replicas_ = {.sharded = &all,
               .zero = static_cast<int>(parallelism.zero),
               .tp = mesh.size(MeshAxis::Tp) == 1 ? nullptr : &mesh.along(MeshAxis::Tp)};
  // One sum over all is the same if nothing is divided.
  if (copies == 1 || parallelism.zero == 0) return;
  const int share = all.world() / static_cast<int>(copies);
  sharded_ = all.split(all.rank() / share, all.rank());
  copies_ = all.split(all.rank() % share, all.rank());
  replicas_.sharded = sharded_.get();
  replicas_.copies = copies_.get();
}

}  // namespace armillary::train
