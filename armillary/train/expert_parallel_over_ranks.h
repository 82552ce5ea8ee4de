// expert_parallel_over_ranks.h: the collectives of a model's experts over groups.
#pragma once

#include <memory>

#include "armillary/comm/communicator.h"
#include "armillary/comm/mesh.h"
#include "armillary/model/expert_parallel.h"
#include "armillary/model/model.h"
#include "armillary/train/store.h"

namespace armillary::train {

/// The groups of a rank; those that are not null must outlive the backward pass.
struct ExpertGroups {
  comm::Communicator* ep = nullptr;  ///< Null: this rank has all experts.
  comm::Communicator* sequence;      ///< Those that share each sequence: cp x tp.
  comm::Communicator* batch;         ///< All.
};

/// Each call waits for its collective, for at most the timeout of the group. Threads: that of the
/// rank. @throws as comm/collectives.h.
std::shared_ptr<model::ExpertParallel> expert_parallel_over_ranks(const ExpertGroups& groups);

bool has_experts(const model::Model& model);

/// Those of a model on a mesh, with `replicas.ep` of its store; null without experts.
std::shared_ptr<model::ExpertParallel> expert_parallel_of(const model::Model& model,
                                                          const comm::Mesh& mesh,
                                                          const Replicas& replicas);

}  // namespace armillary::train
