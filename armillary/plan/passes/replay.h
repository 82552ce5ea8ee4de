// replay.h: the forward pass again, with known results, to restore the tiles that backward finds.
//
// A layer that is recomputed in backward needs its attention's output, and Q, K, V, Out and Lse
// in the tiles where forward saved them. If Out and Lse are kept from the first time, nothing is
// attended again:
//
//   forward  Q K V --heads for tokens--> saved Q K V --attend--> saved Out Lse --> Out at its owner
//   replay   Q K V --heads for tokens--> saved Q K V     kept -> saved Out Lse --> Out at its owner
//
// If heads are not traded and K, V are not transposed, forward saves the tensors of the caller
// themselves, and a replay has no ops.
#pragma once

#include "armillary/plan/plan.h"

namespace armillary::plan {

/// Keeps the ops of a rank's forward program that bring inputs to saved tiles, or the saved Out
/// (and Lse) to outputs. The inputs of the replay are Q, K, V, and the saved Out and Lse; its
/// outputs and `saved` are those of forward, in the same order. Sends and receives of the ranks'
/// replays pair up as they do in forward, in the same lanes and the same order. Requires a program
/// that is not lowered. Source: the checkpointing after attention of DistFlashAttn
/// (arXiv:2310.03294) and StarTrail (arXiv:2407.00611), here for any strategy.
RankProgram replay(const Problem& problem, const Blocks& blocks, const RankProgram& forward);

}  // namespace armillary::plan
