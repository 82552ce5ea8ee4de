// functional.h: attention as two functions without a graph, for callers that have an autograd of
// their own, such as the dispatcher of PyTorch.
//
//   forward(q, k, v)            --> out, saved        saved: tensors in the strategy's own form
//   backward(saved, d out)      --> dq, dk, dv, d sinks
//
// Nothing but tensors and options passes between the two, so a compiler may keep, drop or compute
// again whatever it likes. Shape letters are those of sequence_parallel_attention.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "armillary/attention/attention_in_progress.h"
#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/comm/communicator.h"

namespace armillary::attention {

struct ForwardResult {
  at::Tensor out_BLHE;
  SavedAttention saved;
  IsOwn is_own;
  /// As AttentionResult has it; with return_max_logit only.
  at::Tensor max_logit_H = {};
};

/// Gradients of this rank's tokens. `dsinks_H` is this rank's share; undefined without sinks.
struct AttentionGradients {
  at::Tensor dq_BLHD;
  at::Tensor dk_BLGD;
  at::Tensor dv_BLGE;
  at::Tensor dsinks_H;
};

/// The output of sequence_parallel_attention, bit for bit, without a graph. Takes return_max_logit.
/// Collective.
/// @throws as sequence_parallel_attention; the group is aborted then.
ForwardResult forward(const AttentionInputs& inputs, comm::Communicator& comm,
                      const AttentionOptions& options);

/// The gradients of a call of `shape` and `options`. Collective. Programs that the group has not
/// proved yet are agreed on and proved first; else nothing is compared, as forward has done so.
/// @throws as forward; InvalidArgument if a tensor is not one that forward saves.
AttentionGradients backward(const SavedAttention& saved, const at::Tensor& dout_BLHE,
                            const AttentionShape& shape, comm::Communicator& comm,
                            const AttentionOptions& options);

/// The form of the saved tensors, known without running anything: for compilers that ask for
/// shapes.
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
