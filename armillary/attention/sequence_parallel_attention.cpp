#include "armillary/attention/sequence_parallel_attention.h"

#include "armillary/attention/attention_in_progress.h"
#include "armillary/attention/or_abort.h"

namespace armillary::attention {
namespace {

/// The call that `begin` begins for the shape of three tensors, with all of them at once.
template <class Begin>
AttentionResults at_once(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                         const at::Tensor& v_BLGE, comm::Communicator& comm, const Begin& begin) {
  const AttentionShape shape =
      or_abort(comm, [&] { return attention_shape_of(q_BLHD, k_BLGD, v_BLGE); });
  AttentionInProgress call = begin(shape);
  call.feed_k(k_BLGD);
  call.feed_v(v_BLGE);
  return call.finish(q_BLHD, k_BLGD, v_BLGE);
}

}  // namespace

at::Tensor sequence_parallel_attention(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                       const at::Tensor& v_BLGE, comm::Communicator& comm,
                                       const AttentionOptions& options) {
  const auto begin = [&](const AttentionShape& shape) {
    return AttentionInProgress::begin(shape, comm, options);
  };
  return at_once(q_BLHD, k_BLGD, v_BLGE, comm, begin).out_BLHE;
}

AttentionResult sequence_parallel_attention_lse(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                                const at::Tensor& v_BLGE, comm::Communicator& comm,
                                                const AttentionOptions& options) {
  const auto begin = [&](const AttentionShape& shape) {
    return AttentionInProgress::begin_lse(shape, comm, options);
  };
  const AttentionResults results = at_once(q_BLHD, k_BLGD, v_BLGE, comm, begin);
  return {results.out_BLHE, results.lse_BLH, results.max_logit_H};
}

KeepResult sequence_parallel_attention_keep(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                            const at::Tensor& v_BLGE, comm::Communicator& comm,
                                            const AttentionOptions& options) {
  const auto begin = [&](const AttentionShape& shape) {
    return AttentionInProgress::begin_keep(shape, comm, options);
  };
  const AttentionResults results = at_once(q_BLHD, k_BLGD, v_BLGE, comm, begin);
  return {results.out_BLHE, results.kept};
}

at::Tensor sequence_parallel_attention_replay(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                              const at::Tensor& v_BLGE, const KeptAttention& kept,
                                              comm::Communicator& comm,
                                              const AttentionOptions& options) {
  const auto begin = [&](const AttentionShape& shape) {
    return AttentionInProgress::begin_replay(shape, kept, comm, options);
  };
  return at_once(q_BLHD, k_BLGD, v_BLGE, comm, begin).out_BLHE;
}

}  // namespace armillary::attention
