#include "armillary/attention/sequence_parallel_attention.h"

#include "armillary/attention/attention_in_progress.h"
#include "armillary/runtime/or_abort.h"

namespace armillary::attention {
namespace {

/// One call from begin to finish, for a caller that has all inputs. Shapes are checked first, and a
/// rank that refuses its own aborts the group, so that no peer waits for it.
AttentionResults at_once(CallKind kind, const AttentionInputs& inputs, comm::Communicator& comm,
                         const AttentionOptions& options, const KeptAttention& kept = {}) {
  const AttentionShape shape = runtime::or_abort(
      comm, [&] { return attention_shape_of(inputs.q_BLHD, inputs.k_BLGD, inputs.v_BLGE); });
  return AttentionInProgress::begin(kind, shape, comm, options, kept)
      .finish(inputs.q_BLHD, inputs.k_BLGD, inputs.v_BLGE);
}

}  // namespace

at::Tensor sequence_parallel_attention(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                       const at::Tensor& v_BLGE, comm::Communicator& comm,
                                       const AttentionOptions& options) {
  return at_once(CallKind::Attention, {q_BLHD, k_BLGD, v_BLGE}, comm, options).out_BLHE;
}

AttentionResult sequence_parallel_attention_lse(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                                const at::Tensor& v_BLGE, comm::Communicator& comm,
                                                const AttentionOptions& options) {
  const AttentionResults results =
      at_once(CallKind::AttentionLse, {q_BLHD, k_BLGD, v_BLGE}, comm, options);
  return {results.out_BLHE, results.lse_BLH, results.max_logit_H};
}

KeepResult sequence_parallel_attention_keep(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                            const at::Tensor& v_BLGE, comm::Communicator& comm,
                                            const AttentionOptions& options) {
  const AttentionResults results = at_once(CallKind::Keep, {q_BLHD, k_BLGD, v_BLGE}, comm, options);
  return {results.out_BLHE, results.kept};
}

at::Tensor sequence_parallel_attention_replay(const AttentionInputs& inputs,
                                              const KeptAttention& kept, comm::Communicator& comm,
                                              const AttentionOptions& options) {
  return at_once(CallKind::Replay, inputs, comm, options, kept).out_BLHE;
}

}  // namespace armillary::attention
