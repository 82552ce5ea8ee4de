// replay.h: a forward pass whose results are known, run again for what backward finds.
//
// A layer that is recomputed in backward needs its attention's output, and Q, K, V, Out and Lse
// where forward saved them. With Out and Lse kept since the first time nothing is attended again:
//
//   forward  Q K V --heads for tokens--> saved Q K V --attend--> saved Out Lse --> Out at home
//   replay   Q K V --heads for tokens--> saved Q K V     kept -> saved Out Lse --> Out at home
//
// Where heads are not traded and K, V are not transposed, what forward saves are the tensors of the
// caller, and a replay does and sends nothing.
#pragma once

#include "armillary/plan/plan.h"

namespace armillary::plan {

/// The ops of a rank's forward program that bring inputs to saved tiles, or the saved Out (and Lse)
/// to outputs. Its inputs are Q, K, V, and the saved Out and Lse; outputs and `saved` are
/// forward's, in the same order. Sends and receives of the ranks' replays pair up as they do in
/// forward, in the same lanes and the same order. Of a program that is not lowered. Source: the
/// checkpointing after attention of DistFlashAttn (arXiv:2310.03294) and StarTrail
/// (arXiv:2407.00611), for any strategy.
RankProgram replay(const Problem& problem, const Blocks& blocks, const RankProgram& forward);

}  // namespace armillary::plan
