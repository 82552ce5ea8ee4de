// sequence_parallel_attention.h: exact attention over a sequence that is spread over ranks.
//
//   q_BLHD, k_BLGD, v_BLGE of this rank's tokens --> out_BLHE of the same tokens, differentiable
//
// B batch, L local tokens, H query heads, G KV heads, D head dim of Q and K, E value dim. Which
// tokens a rank holds, and in which order, is the layout's: plan::shards(layout, mask,
// world).q[rank]. Where k is there before q, attention_in_progress.h sends it at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "armillary/comm/communicator.h"
#include "armillary/kernel/dropout.h"
#include "armillary/plan/layout.h"
#include "armillary/plan/mask.h"
#include "armillary/plan/problem.h"

namespace armillary::attention {

struct AttentionOptions {
  plan::Mask mask;                ///< Over the whole sequence.
  plan::Layout layout;            ///< Of the tokens over the ranks.
  std::string strategy = "ring";  ///< As on the command line: "usp:u=2".
  /// dtype of partial outputs and gradients between ranks. Wire::Input halves those bytes in bf16
  /// and fp16 and rounds each of them once more.
  plan::Wire wire = plan::Wire::Accumulator;
  std::optional<double> scale = {};  ///< 1 / sqrt(D) if not given.
  std::optional<double> timeout_s =
      {};  ///< Longest wait for peers; the communicator's if not given.

  // Features: the same in every strategy, formulas in kernel/score.h. Tensors hold all query heads,
  // also where a rank computes some of them, and are equal on all ranks.

  /// Scores become softcap tanh(score / softcap); finite and above 0.
  std::optional<double> softcap = {};
  /// ALiBi: a score loses slope |k - q - (kv_len - q_len)|, by global positions, after the softcap.
  /// [H] fp32, finite, constants: one that requires a gradient is refused.
  at::Tensor alibi_slopes_H = {};
  /// Attention sinks: [H] logits that join the denominator of every row, with no value. fp64, fp32,
  /// bf16 or fp16; may require a gradient. A query that sees no key then has the sink itself as its
  /// log-sum-exp, and still gives 0.
  ///
  /// A rank's `sinks_H.grad()` is its SHARE, from the rows whose gradients it computes; the sum
  /// over ranks is the gradient. Just so for any parameter that all ranks hold and apply to their
  /// own tokens: a trainer that sums parameter gradients over ranks is right.
  at::Tensor sinks_H = {};
  /// Drops probabilities by (seed, step, batch entry, head, query, key): the same on any world and
  /// in any strategy. The log-sum-exp is that of undropped scores. Give every layer its own seed.
  kernel::Dropout dropout = {};
  /// Folder of recorded proofs (`armillary verify --save-proof`); what it has none of is proved in
  /// this process. Empty for none.
  std::string proofs = {};
  /// Only for sequence_parallel_attention_lse. Costs a message of H numbers to every other rank.
  bool return_max_logit = false;
};

/// Every rank of the group calls it with the same options, in the same order; its backward
/// likewise.
///
/// (1) Equal to one-device softmax attention over the whole sequence, up to rounding, in output and
/// all gradients, with any of the features on; (2) partial results and gradients are summed in fp32
/// (fp64 for fp64 inputs), and rounded to the input dtype once; (3) a query that sees no key gives
/// 0, and zero gradients; (4) the same call on the same world gives the same bits, whatever the
/// timing; (5) what cannot be done as asked is refused before a byte moves; (6) no program runs
/// that was not proved, and none on ranks that were asked for different things (agreement.h). The
/// first call of a problem and strategy waits for the proof.
///
/// Gradients of gradients are not: the backward pass records no graph.
///
/// dtypes: fp64, fp32, bf16, fp16, all tensors alike. Devices: CPU. Threads: one per rank; ranks
/// that are threads of one process may share nothing but the communicator's group. `comm` must
/// outlive the backward pass.
/// @throws InvalidArgument on shapes, dtypes, heads, layout, strategy or features that do not fit,
/// or that differ from another rank's, and for a recorded proof that is none; PlanError on every
/// rank if the plan is not exact; CommError if a peer fails or a deadline passes, on every rank.
at::Tensor sequence_parallel_attention(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                       const at::Tensor& v_BLGE, comm::Communicator& comm,
                                       const AttentionOptions& options);

/// The same with the log-sum-exp of every query row (natural log, accumulator dtype, -inf where no
/// key is seen; of undropped scores, a sink included). Differentiable in `out` only.
struct AttentionResult {
  at::Tensor out_BLHE;
  at::Tensor lse_BLH;
  /// If asked for: the largest visible score of each query head over the whole sequence and batch,
  /// sinks not counted, in the accumulator dtype; the same bits on every rank; -inf if there is
  /// none.
  at::Tensor max_logit_H = {};
};
AttentionResult sequence_parallel_attention_lse(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                                const at::Tensor& v_BLGE, comm::Communicator& comm,
                                                const AttentionOptions& options);

/// What a layer that is recomputed in backward keeps of its attention: out and log-sum-exp as the
/// strategy's backward finds them (by head group, where heads are traded for tokens). No graph.
struct KeptAttention {
  at::Tensor out;
  at::Tensor lse;
};

/// Attention of a layer whose activations are not kept (DistFlashAttn, arXiv:2310.03294; StarTrail,
/// arXiv:2407.00611). `sequence_parallel_attention_keep`: the output of
/// sequence_parallel_attention, bit for bit, with no graph. `sequence_parallel_attention_replay`,
/// with the same q, k, v and options: the same output again, differentiable, bit for bit as
/// sequence_parallel_attention is. It attends to nothing; it sends only what trades heads for
/// tokens, so in most strategies nothing. Collective, as the other calls. @throws InvalidArgument
/// also if `kept` is of another call.
struct KeepResult {
  at::Tensor out_BLHE;
  KeptAttention kept;
};
KeepResult sequence_parallel_attention_keep(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                            const at::Tensor& v_BLGE, comm::Communicator& comm,
                                            const AttentionOptions& options);
at::Tensor sequence_parallel_attention_replay(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                              const at::Tensor& v_BLGE, const KeptAttention& kept,
                                              comm::Communicator& comm,
                                              const AttentionOptions& options);

}  // namespace armillary::attention
