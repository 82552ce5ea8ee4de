// attend_over_ranks.h: the attention of a model whose sequence is spread over ranks.
#pragma once

#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/comm/communicator.h"
#include "armillary/train/models/attend.h"

namespace armillary::train {

/// sequence_parallel_attention and its _keep and _replay, begun before k, v and q are there: each
/// travels while the next is made (attention_in_progress.h). Collective, as those are; a call that
/// is dropped ends all ranks. `comm` must outlive the backward pass.
Attends attend_over_ranks(comm::Communicator& comm, const attention::AttentionOptions& options);

}  // namespace armillary::train
