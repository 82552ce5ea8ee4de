#include "armillary/train/replica_groups.h"

#include <cstddef>
#include <vector>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"
#include "armillary/plan/step/shape.h"

namespace armillary::train {

void check_copies(int dp, const ParallelismOptions& parallelism) {
  const std::int64_t copies = parallelism.data_parallel_replicate_degree;
  if (dp % copies == 0) return;
  fail<InvalidArgument>(
      "mesh: parallelism.data_parallel_replicate_degree = {} of {} ranks along dp; a divisor of "
      "{} is required; nearest: {}",
      copies, dp, dp, nearest_divisor(dp, copies));
}

ReplicaGroups::ReplicaGroups(const comm::Mesh& mesh, const ParallelismOptions& parallelism,
                             bool has_experts) {
  comm::Communicator& all = mesh.replicas();
  const std::int64_t copies = parallelism.data_parallel_replicate_degree;
  check_copies(mesh.size(MeshAxis::Dp), parallelism);
  replicas_ = {.sharded = &all,
               .zero = static_cast<int>(parallelism.zero),
               .tp = mesh.size(MeshAxis::Tp) == 1 ? nullptr : &mesh.along(MeshAxis::Tp)};
  // One sum over all is the same if nothing is divided.
  if (copies > 1 && parallelism.zero > 0) add_copies(mesh, static_cast<int>(copies));
  if (has_experts) add_experts(mesh, parallelism);
}

// The copies are the outer ranks along dp, whatever the order of axes.
void ReplicaGroups::add_copies(const comm::Mesh& mesh, int copies) {
  comm::Communicator& all = mesh.replicas();
  const int inner = mesh.size(MeshAxis::Dp) / copies;
  const int index = mesh.index(MeshAxis::Dp);
  sharded_ = all.split(index / inner, all.rank());
  copies_ =
      all.split(index % inner * mesh.size(MeshAxis::Cp) + mesh.index(MeshAxis::Cp), all.rank());
  replicas_.sharded = sharded_.get();
  replicas_.copies = copies_.get();
}

// The axes of ep are those that a step has, whatever its units. Replicas of experts that are those
// of the rest, or the ranks along tp, are the same group: a step's program knows groups by ranks.
void ReplicaGroups::add_experts(const comm::Mesh& mesh, const ParallelismOptions& parallelism) {
  const plan::step::StepTables tables(
      {.units = {{.name = "others", .split = 1, .uses = {}},
                 {.name = "experts", .uses = {}, .experts = 1}},
       .mesh = mesh.shape(),
       .copies =
           parallelism.zero == 0 ? 1 : static_cast<int>(parallelism.data_parallel_replicate_degree),
       .ep = static_cast<int>(parallelism.expert_parallel_degree)});
  comm::Communicator& world = mesh.world();
  const auto group = [&](plan::step::AxisSet axes,
                         std::unique_ptr<comm::Communicator>& split) -> comm::Communicator* {
    const std::vector<plan::Rank> ranks = tables.group(axes, world.rank());
    if (ranks.size() == 1) return nullptr;
    if (ranks.size() == static_cast<std::size_t>(world.world())) return &world;
    split = world.split(ranks.front(), world.rank());
    return split.get();
  };
  const plan::step::AxisSet axes = tables.expert_replica_axes();
  replicas_.experts = axes == tables.replica_axes() ? replicas_.sharded
                      : axes == tables.tp_axis()    ? replicas_.tp
                                                    : group(axes, experts_);
  replicas_.ep = group(tables.ep_axes(), ep_);
}

}  // namespace armillary::train
