// attend_over_ranks.cpp: wraps AttentionInProgress in the functions that a model calls. Each call
// of a layer shares one AttentionInProgress between its three closures.
#include "armillary/train/attend_over_ranks.h"

#include <memory>

#include "armillary/attention/attention_in_progress.h"

namespace armillary::train {
namespace {

using attention::AttentionInProgress;
using attention::AttentionOptions;
using attention::AttentionResults;
using attention::AttentionShape;
using attention::CallKind;
using attention::KeptAttention;

/// Self-attention: as many keys as queries, values as wide as keys.
AttentionShape attention_shape_of(const QkvShape& shape) {
  return {.batch = shape.batch,
          .q_tokens = shape.tokens,
          .kv_tokens = shape.tokens,
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .value_dim = shape.head_dim,
          .dtype = shape.dtype};
}

/// The call `begun` as a model sees it; `result` makes the model's Output of its AttentionResults.
template <class Output, class Make>
typename AttentionFunction<Output>::InProgress call_of(AttentionInProgress begun,
                                                       const Make& result) {
  const auto call = std::make_shared<AttentionInProgress>(std::move(begun));
  return {.take_k = [call](const at::Tensor& k_BLGD) { call->feed_k(k_BLGD); },
          .take_v = [call](const at::Tensor& v_BLGD) { call->feed_v(v_BLGD); },
          .finish =
              [call, result](const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                             const at::Tensor& v_BLGD) {
                return result(call->finish(q_BLHD, k_BLGD, v_BLGD));
              }};
}

at::Tensor output_of(const AttentionResults& results) {
  return results.out_BLHE;
}

}  // namespace

Attends attend_over_ranks(comm::Communicator& comm, const AttentionOptions& options) {
  // Each function begins a call on this rank; the rest happens in the calls' closures.
  const auto attend = [&comm, options](const QkvShape& shape) {
    return call_of<at::Tensor>(
        AttentionInProgress::begin(CallKind::Attention, attention_shape_of(shape), comm, options),
        output_of);
  };
  // A replay holds the kept tensors until backward has run.
  const auto replay = [&comm, options](const KeptAttention& kept) {
    return [&comm, options, kept](const QkvShape& shape) {
      return call_of<at::Tensor>(
          AttentionInProgress::begin(CallKind::Replay, attention_shape_of(shape), comm, options,
                                     kept),
          output_of);
    };
  };
  const auto keep = [&comm, options, replay](const QkvShape& shape) {
    return call_of<KeptOutput>(
        AttentionInProgress::begin(CallKind::Keep, attention_shape_of(shape), comm, options),
        [replay](const AttentionResults& results) {
          return KeptOutput{results.out_BLHE, replay(results.kept)};
        });
  };
  return {attend, keep};
}

}  // namespace armillary::train
