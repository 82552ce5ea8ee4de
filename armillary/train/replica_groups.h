// replica_groups.h: the ranks along tp, and those with the same parameters, dp x cp, as the groups
// that divide them and the groups of copies of one share; of a model with experts the ranks along
// ep, and those with the same experts.
//
//   dp 4 x cp 1, data_parallel_replicate_degree 2:   shares  {0, 1} {2, 3}    copies  {0, 2} {1, 3}
//   dp 2 x cp 2, expert_parallel_degree 2:   ep  {0, 1} {2, 3}   same experts  {0, 2} {1, 3}
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
  /// Collective over the mesh. @throws InvalidArgument as check_copies, or for an ep that the mesh
  /// has not.
  ReplicaGroups(const comm::Mesh& mesh, const ParallelismOptions& parallelism,
                bool has_experts = false);

  const Replicas& replicas() const { return replicas_; }

 private:
  void add_copies(const comm::Mesh& mesh, int copies);
  void add_experts(const comm::Mesh& mesh, const ParallelismOptions& parallelism);

  /// Null where no split was needed.
  std::unique_ptr<comm::Communicator> sharded_, copies_, experts_, ep_;
  Replicas replicas_;
};

}  // namespace armillary::train
