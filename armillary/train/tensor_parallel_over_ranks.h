// tensor_parallel_over_ranks.h: the collectives of a model's tensor parallelism over a group.
#pragma once

#include <memory>

#include "armillary/comm/communicator.h"
#include "armillary/model/tensor_parallel.h"

namespace armillary::train {

/// The ranks of `tp`, those along tp of a mesh (comm/mesh.h). Each call waits for its collective,
/// for at most the timeout of the group. `tp` must outlive the backward pass. Threads: that of the
/// rank.
/// @throws as comm/collectives.h.
std::shared_ptr<model::TensorParallel> tensor_parallel_over_ranks(comm::Communicator& tp);

}  // namespace armillary::train
