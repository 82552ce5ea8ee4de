// attend_over_ranks.cpp: wraps calls of attention in the functions that a model calls. Each call of
// a layer shares one AttentionInProgress between its three closures.
#include "armillary/train/attend_over_ranks.h"

#include <memory>
#include <utility>

#include "armillary/attention/attention.h"

namespace armillary::train {
namespace {

using attention::Attention;
using attention::AttentionInProgress;
using attention::AttentionResults;
using attention::AttentionShape;
using attention::CallKind;
using attention::KeptAttention;

/// Self-attention: as many keys as queries, values as wide as keys.
AttentionShape attention_shape_of(const model::QkvShape& shape) {
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
typename model::AttentionFunction<Output>::InProgress call_of(AttentionInProgress begun,
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

model::Attends attend_over_ranks(comm::Communicator& comm,
                                 const attention::AttentionOptions& options) {
  // Each function begins a call on this rank; the rest happens in the calls' closures.
  const auto attention = std::make_shared<const Attention>(comm, options);
  const auto attend = [attention](const model::QkvShape& shape) {
    return call_of<at::Tensor>(attention->begin(CallKind::Attention, attention_shape_of(shape)),
                               output_of);
  };
  // A replay holds the kept tensors until backward has run.
  const auto replay = [attention](const KeptAttention& kept_output) {
    return [attention, kept_output](const model::QkvShape& shape) {
      return call_of<at::Tensor>(
          attention->begin(CallKind::Replay, attention_shape_of(shape), kept_output), output_of);
    };
  };
  const auto keep = [attention, replay](const model::QkvShape& shape) {
    return call_of<model::KeptOutput>(
        attention->begin(CallKind::Keep, attention_shape_of(shape)),
        [replay](const AttentionResults& results) {
          return model::KeptOutput{results.out_BLHE, replay(results.kept_output)};
        });
  };
  return {attend, keep};
}

}  // namespace armillary::train
