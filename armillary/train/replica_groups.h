// replica_groups.h: the ranks along tp, and those with the same parameters, dp x cp, as the groups
// that divide them and the groups of copies of one share.
//
//   dp 4 x cp 1, data_parallel_replicate_degree 2:   shares  {0, 1} {2, 3}    copies  {0, 2} {1, 3}
#pragma once

#include <memory>

#include "armillary/comm/mesh.h"
#include "armillary/train/parallelism.h"
#include "armillary/train/store.h"

namespace armillary::train {

/// @throws InvalidArgument if data_parallel_replicate_degree does not divide so many ranks along
/// dp.
void check_copies(int dp, const ParallelismOptions& parallelism);

/// The groups of one rank; the mesh must outlive them. Threads: that of the rank.
class ReplicaGroups {
 public:
  /// Collective over the mesh. @throws InvalidArgument as check_copies.
  ReplicaGroups(const comm::Mesh& mesh, const ParallelismOptions& parallelism);

  const Replicas& replicas() const { return replicas_; }

 private:
  std::unique_ptr<comm::Communicator> sharded_, copies_;  ///< Null where no split was needed.
  Replicas replicas_;
};

}  // namespace armillary::train
