// attention.h: exact attention over a sequence that is spread over ranks, as an object.
//
//   Attention(comm, options)
//      |-- begin(kind, shape) --> feed_k, feed_v, finish     inputs one by one
//      |-- run(kind, q, k, v) --> out, and what the kind gives besides
//      '-- backward(saved, d out) --> d q, d k, d v, d sinks     without a graph
//
// sequence_parallel_attention() is for callers that want the output of one call. Shape letters are
// those of its file.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "armillary/attention/attention_in_progress.h"
#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/comm/communicator.h"

namespace armillary::attention {

/// Tensors of this rank.
struct AttentionInputs {
  at::Tensor q_BLHD;
  at::Tensor k_BLGD;
  at::Tensor v_BLGE;
};

/// Gradients of this rank's tokens. `dsinks_H` is this rank's share; undefined without sinks.
struct AttentionGradients {
  at::Tensor dq_BLHD;
  at::Tensor dk_BLGD;
  at::Tensor dv_BLGE;
  at::Tensor dsinks_H;
};

/// Attention in one group, with one set of options. It costs nothing to make: plans, programs and
/// proofs are made by the first call of a problem and kept with the group, for all objects and
/// calls (runtime/group_state.h).
///
/// Collective, as sequence_parallel_attention is, with all that it says. Threads: that of the rank.
/// `comm` must outlive the object and the backward passes of its calls.
class Attention {
 public:
  Attention(comm::Communicator& comm, AttentionOptions options);

  /// Begins a call whose inputs come one by one: checks it and tells it to the next rank
  /// (agreement.h); needs no tensor yet. `kept_output` is for a replay only. The call does not need
  /// this object any more.
  /// @throws as sequence_parallel_attention; InvalidArgument if another call is in progress.
  AttentionInProgress begin(CallKind kind, const AttentionShape& shape,
                            const KeptAttention& kept_output = {}) const;

  /// One call, from begin to finish.
  /// @throws as sequence_parallel_attention; InvalidArgument also if `kept_output` is of another
  /// call.
  AttentionResults run(CallKind kind, const AttentionInputs& inputs,
                       const KeptAttention& kept_output = {}) const;

  /// The gradients of a Functional call of `shape`. Programs that the group has not proved yet are
  /// agreed on and proved first; else nothing is compared, as forward has done so.
  /// @throws as run; InvalidArgument if a tensor is not one that forward saves.
  AttentionGradients backward(const SavedAttention& saved, const at::Tensor& dout_BLHE,
                              const AttentionShape& shape) const;

 private:
  comm::Communicator* comm_;
  AttentionOptions options_;
};

/// The form of the tensors that a Functional call saves, known without running anything: for
/// compilers that ask for shapes.
struct SavedForm {
  std::array<std::vector<std::int64_t>, 5> shapes;  ///< In the order of SavedAttention.
  IsOwn is_own;
};

/// A place in a group: all that shapes depend on besides the call.
struct GroupPlace {
  int rank = 0;
  int world = 1;
};

/// @throws InvalidArgument if the call cannot be planned.
SavedForm saved_form(const AttentionShape& shape, GroupPlace place,
                     const AttentionOptions& options);

}  // namespace armillary::attention
