// attention_call.h: one call of attention: checked, compiled, agreed on by all ranks, and run.
//
//   prepare_call --> agree --> messages move (attention_in_progress.cpp) --> end
//        '-- tells the next rank the call   '-- waits for the others, and proves new programs
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "armillary/attention/agreement.h"
#include "armillary/attention/attention_in_progress.h"
#include "armillary/attention/sequence_parallel_attention.h"
#include "armillary/comm/communicator.h"
#include "armillary/runtime/executor.h"
#include "armillary/runtime/group_state.h"
#include "armillary/runtime/program_cache.h"
#include "armillary/runtime/rank.h"

namespace armillary::attention {

/// Tensors that forward saves for backward, in the order of SavedAttention, in which autograd keeps
/// them too.
inline constexpr plan::Tensor kSaved[] = {plan::Tensor::Q, plan::Tensor::K, plan::Tensor::V,
                                          plan::Tensor::Out, plan::Tensor::Lse};

/// The tile that forward saves of a tensor.
int saved_tile(const plan::RankProgram& program, plan::Tensor tensor);

/// Which of the saved tiles are neither inputs nor outputs.
IsOwn is_own_of(const plan::RankProgram& program);

/// K or V of a call that took it ahead of the rest.
struct FedTensor {
  at::Tensor value = {};  ///< Undefined before.
  std::int64_t version = 0;
};

/// One call on one rank: the state of an AttentionInProgress. The autograd graph of the call holds
/// it too, so backward finds here the programs and options of forward; a call that is over has no
/// tensors. Destroyed while it runs, it aborts the group. Threads: that of the rank.
struct AttentionCall {
  CallKind kind = CallKind::Attention;
  AttentionShape shape;
  comm::Communicator* comm = nullptr;
  runtime::Rank* rank = nullptr;                 ///< Device, recorder and execution pool.
  runtime::GroupState* group = nullptr;          ///< State of the rank in `comm`.
  std::shared_ptr<runtime::KnownProblem> known;  ///< The problem in that state.
  std::shared_ptr<const runtime::CompiledAttention> programs;
  runtime::ExecutionOptions options;   ///< Without sinks: a parameter, which the graph holds.
  std::string proofs;                  ///< Folder of recorded proofs; empty for none.
  std::optional<Agreement> agreement;  ///< Gate of the run; none once the call is over.
  bool may_run = false;                ///< The programs are proved in this group.

  // While it is in progress.
  std::unique_ptr<runtime::Execution> run;  ///< Forward or replay; null before and after.
  std::optional<at::Tensor> sinks_H;
  FedTensor k_BLGD;
  FedTensor v_BLGE;
  /// Why it ended before it had finished; written before is_dropped, which other threads may read.
  std::string drop_reason;
  std::atomic<bool> is_dropped = false;

  AttentionCall() = default;
  AttentionCall(const AttentionCall&) = delete;
  AttentionCall& operator=(const AttentionCall&) = delete;
  ~AttentionCall();

  /// The backward program for the kernel of the rank's present device, which may be another than
  /// that of forward.
  std::shared_ptr<const runtime::CompiledProgram> backward() const;

  /// Options of a run on the present device, with the sinks in the accumulator dtype.
  runtime::ExecutionOptions options_with(const std::optional<at::Tensor>& sinks) const;

  /// Runs the backward program on what forward saved, in the order of kSaved. Returns the gradients
  /// of q, k, v and the sinks, the last undefined without them. Collective. @throws as Execution.
  std::vector<at::Tensor> run_backward(std::span<const at::Tensor> saved, const at::Tensor& dout,
                                       const std::optional<at::Tensor>& sinks) const;

  /// Called before the first tile moves. Programs that are not proved yet: waits until all ranks
  /// agree, and proves the programs with them. Others: waits some microseconds at most; the gate
  /// holds the run's messages back until all ranks agree. Collective.
  /// @throws as Agreement::wait and proof::prove_together.
  void agree();

  /// Waits until all ranks agree. @throws as Agreement::wait.
  void wait_for_agreement();

  /// Hands out the execution, lets go of the tensors, and marks the group as free for the next
  /// call.
  std::unique_ptr<runtime::Execution> end();

  /// Ends a call that is in progress, on all ranks, for this reason.
  void drop(const std::string& reason);

  /// @throws CommError if the call was dropped, InvalidArgument if it has finished.
  void check_in_progress() const;
};

/// Checks the call on this rank, compiles its programs and begins to agree on it with all ranks. If
/// this rank refuses the call, it tells all others, which then refuse it too. `kept_output` is read
/// for a replay only. @throws as sequence_parallel_attention.
std::shared_ptr<AttentionCall> prepare_call(CallKind kind, const AttentionShape& shape,
                                            comm::Communicator& comm,
                                            const AttentionOptions& options,
                                            const KeptAttention& kept_output);

/// A call for Attention::backward: checked and compiled as prepare_call does it, but compared with
/// other ranks only if its programs are not proved yet.
/// @throws as sequence_parallel_attention.
std::shared_ptr<AttentionCall> prepare_backward(const AttentionShape& shape,
                                                comm::Communicator& comm,
                                                const AttentionOptions& options);

/// The problem that a call stands for in a group of `world` ranks.
/// @throws InvalidArgument for a dtype that attention does not take.
plan::Problem problem_of(CallKind kind, const AttentionShape& shape, int world,
                         const AttentionOptions& options);

/// Calls of one group must not overlap: their messages would mix.
/// @throws InvalidArgument if one is in progress in this group, on its rank `rank`.
void check_no_call_in_progress(const runtime::GroupState& group, int rank);

}  // namespace armillary::attention
