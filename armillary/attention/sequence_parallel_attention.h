// sequence_parallel_attention.h: exact attention over a sequence that is spread over ranks, in one
// call. Everything else that a call may be is in attention.h.
//
//   q_BLHD, k_BLGD, v_BLGE of this rank's tokens --> out_BLHE of the same tokens, differentiable
//
// B batch entries, L local tokens, H query heads, G KV heads, D head dim of Q and K, E value dim.
// The layout says which tokens a rank holds, and in which order: plan::shards(layout, mask,
// world).q[rank].
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "armillary/comm/communicator.h"
#include "armillary/kernel/dropout.h"
#include "armillary/plan/layout.h"
#include "armillary/plan/mask/mask.h"
#include "armillary/plan/problem.h"
#include "armillary/proof/prove.h"

namespace armillary::attention {

struct AttentionOptions {
  plan::Mask mask;      ///< Mask of the whole sequence.
  plan::Layout layout;  ///< The tokens that each rank owns.
  /// Name and keys as on the command line: "usp:u=2"; or "auto:cluster=c6", the choice of the tuner
  /// for a described cluster (predict/tune/automatic.h). It is made for each problem and shown
  /// once.
  std::string strategy = "ring";
  /// dtype of partial outputs and gradients between ranks. TransferDtype::Input halves those bytes
  /// in bf16 and fp16 and rounds each of them once more.
  plan::TransferDtype transfer_dtype = plan::TransferDtype::Accumulator;
  std::optional<double> scale = {};      ///< Factor of q k^T; 1 / sqrt(D) if not given.
  std::optional<double> timeout_s = {};  ///< Longest wait for peers; else the communicator's.

  // Features: the same in every strategy, formulas in kernel/score.h. Their tensors hold all query
  // heads, even if a rank computes only some of them, and are equal on all ranks.

  /// Scores become softcap tanh(score / softcap); finite and above 0.
  std::optional<double> softcap = {};
  /// ALiBi: a score loses slope |k - q - (kv_len - q_len)|, by global positions, after the softcap.
  /// [H] fp32, finite, constants: a tensor that requires a gradient is refused.
  at::Tensor alibi_slopes_H = {};
  /// Attention sinks: [H] logits that join the denominator of every row and have no value. fp64,
  /// fp32, bf16 or fp16; may require a gradient. A query that sees no key then has the sink itself
  /// as its log-sum-exp, and still gives 0.
  ///
  /// A rank's `sinks_H.grad()` is its SHARE, from the rows whose gradients it computes; the
  /// gradient is the sum over the ranks. This is so for any parameter that all ranks hold and apply
  /// to their own tokens, so a trainer that sums parameter gradients over ranks is right.
  at::Tensor sinks_H = {};
  /// Drops probabilities by (seed, step, batch entry, head, query, key): the same on any world and
  /// in any strategy. The log-sum-exp is that of undropped scores. Give every layer its own seed.
  kernel::Dropout dropout = {};
  /// Digest of the contents of the sequence, such as its tokens: ranks compare it as the other
  /// options, so that none attends to another's sequence. 0 if it is not known.
  std::uint64_t sequence = 0;
  /// Folder of recorded proofs (`armillary verify --save-proof`); programs that are not recorded
  /// there are proved in this process. Empty for none.
  std::string proofs = {};
  /// Source of the programs; null for the strategy's, lowered. They are proved before they run, as
  /// those are, once in a group for a problem and strategy: use one source for it, on all ranks.
  proof::ProgramSource programs = {};
  /// Only for calls of the kinds AttentionLse and Functional (attention_in_progress.h). Costs a
  /// message of H numbers to every other rank.
  bool return_max_logit = false;
};

/// Collective: every rank of the group makes the call with the same options, in the same order, and
/// runs its backward in the same order.
///
/// (1) Output and all gradients equal those of one-device softmax attention over the whole
/// sequence, up to rounding, with any of the features on; (2) partial results and gradients are
/// summed in fp32 (fp64 for fp64 inputs), and rounded to the input dtype once; (3) a query that
/// sees no key gives 0, and zero gradients; (4) the same call on the same world gives the same
/// bits, whatever the timing; (5) a call that cannot be done as asked is refused before a byte
/// moves; (6) no program runs that was not proved, and none on ranks that were asked for different
/// things (agreement.h). The first call of a problem and strategy waits for the proof. Backward
/// records no graph, so there are no second derivatives.
///
/// dtypes: fp64, fp32, bf16, fp16, the same for all three. Device: that of the rank
/// (runtime/rank.h), by default the CPU. Threads: one per rank; ranks that are threads of one
/// process need share nothing but the communicator's group. `comm` must outlive the backward pass.
/// @throws InvalidArgument on shapes, dtypes, heads, layout, strategy or features that do not fit,
/// or that differ from another rank's, and for a recorded proof that is none; PlanError on every
/// rank if the plan is not exact; CommError if a peer fails or a deadline passes, on every rank.
at::Tensor sequence_parallel_attention(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                       const at::Tensor& v_BLGE, comm::Communicator& comm,
                                       const AttentionOptions& options);

}  // namespace armillary::attention
