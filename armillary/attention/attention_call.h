// attention_call.h: what one call of attention needs beside its tensors, checked and agreed on by
// all ranks.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "armillary/attention/agreement.h"
#include "armillary/attention/attention_shape.h"
#include "armillary/attention/executor.h"
#include "armillary/attention/program_cache.h"
#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/comm/communicator.h"

namespace armillary::attention {

/// The function of sequence_parallel_attention.h that a call is for.
enum class CallKind : std::uint8_t { Attention, AttentionLse, Keep, Replay };

/// Lives as long as the graph of its call.
struct AttentionCall : torch::CustomClassHolder {
  std::shared_ptr<const CompiledAttention> programs;
  comm::Communicator* comm = nullptr;
  ExecutionOptions options;              ///< Without sinks: a parameter, which the graph holds.
  std::string proofs;                    ///< Folder of recorded ones, or empty.
  std::unique_ptr<Agreement> agreement;  ///< Until all ranks have agreed, and all is proved.
  std::unique_ptr<Execution> run;        ///< Forward or replay, while the call is in progress.

  ExecutionOptions options_with(const std::optional<at::Tensor>& sinks_H) const;

  /// Before the first tile moves. @throws as Agreement::wait and proof::prove_together.
  void wait_for_agreement();

  /// Takes a run for the forward pass, or for the replay.
  void start(const std::shared_ptr<const CompiledProgram>& program,
             const std::optional<at::Tensor>& sinks_H);

  /// Takes the run out of the call: it is in progress no longer.
  std::unique_ptr<Execution> end();
};

/// Checks what is asked for, compiles it and begins to agree on it with all ranks.
/// @throws as sequence_parallel_attention.
c10::intrusive_ptr<AttentionCall> prepare_call(CallKind kind, const AttentionShape& shape,
                                               comm::Communicator& comm,
                                               const AttentionOptions& options);

/// One call at a time: two would mix their messages.
/// @throws InvalidArgument if a call is in progress on this end of the group.
void check_no_call_in_progress(comm::Communicator& comm);

}  // namespace armillary::attention
