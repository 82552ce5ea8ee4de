// attend_over_ranks.h: attention for the layers of a model whose sequence is spread over ranks.
#pragma once

#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/comm/communicator.h"
#include "armillary/model/attend.h"

namespace armillary::train {

/// sequence_parallel_attention and its _keep and _replay in the form in which a model calls them.
/// Calls begin before k, v and q exist, and k and v travel while the next of the three is computed
/// (attention_in_progress.h). Collective, as those functions are; a call that is dropped aborts the
/// group. `comm` must outlive the backward pass. Threads: that of the rank.
model::Attends attend_over_ranks(comm::Communicator& comm,
                                 const attention::AttentionOptions& options);

}  // namespace armillary::train
