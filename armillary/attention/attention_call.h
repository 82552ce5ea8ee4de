// attention_call.h: what one call of attention needs beside its tensors, checked and agreed on by
// all ranks.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "armillary/attention/agreement.h"
#include "armillary/attention/attention_in_progress.h"
#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/comm/communicator.h"
#include "armillary/runtime/context.h"
#include "armillary/runtime/executor.h"
#include "armillary/runtime/program_cache.h"

namespace armillary::attention {

/// Lives as long as the graph of its call.
struct AttentionCall : torch::CustomClassHolder {
  std::shared_ptr<const runtime::CompiledAttention> programs;
  comm::Communicator* comm = nullptr;
  runtime::Context* context = nullptr;      ///< Of `comm`.
  runtime::ExecutionOptions options;        ///< Without sinks: a parameter, which the graph holds.
  std::string proofs;                       ///< Folder of recorded ones, or empty.
  std::unique_ptr<Agreement> agreement;     ///< Of the call in progress; the run's gate.
  bool may_run = false;                     ///< Proved; agree() has nothing more to do.
  std::unique_ptr<runtime::Execution> run;  ///< Forward or replay, while the call is in progress.

  /// The backward pass for the kernel of today's device.
  std::shared_ptr<const runtime::CompiledProgram> backward() const;
  runtime::ExecutionOptions options_with(const std::optional<at::Tensor>& sinks_H) const;

  /// Before the program runs: proves it with all ranks, who have agreed then, if it was not proved
  /// before. Else it waits for agreement briefly: the run's messages wait for the rest.
  /// @throws as Agreement::wait and proof::prove_together.
  void agree();

  /// Takes a run for the forward pass, or for the replay.
  void start(const std::shared_ptr<const runtime::CompiledProgram>& program,
             const std::optional<at::Tensor>& sinks_H);

  /// Takes the run out of the call: it is in progress no longer.
  std::unique_ptr<runtime::Execution> end();
};

/// Checks what is asked for, compiles it and begins to agree on it with all ranks. What cannot be
/// done is told to all ranks, who refuse it too.
/// @throws as sequence_parallel_attention.
c10::intrusive_ptr<AttentionCall> prepare_call(CallKind kind, const AttentionShape& shape,
                                               comm::Communicator& comm,
                                               const AttentionOptions& options,
                                               const KeptAttention& kept);

/// One call at a time: two would mix their messages.
/// @throws InvalidArgument if a call is in progress on this end of the group, which is `rank`'s.
void check_no_call_in_progress(const runtime::Context& context, int rank);

}  // namespace armillary::attention
