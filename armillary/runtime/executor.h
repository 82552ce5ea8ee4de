// executor.h: runs a compiled program of attention on tensors: the machine with the ops of
// attention.
//
//   Execution run(compiled, comm, options);
//   run.feed(Tensor::K, k);        // sends of k alone start while v and q are still projected
//   run.feed(Tensor::V, v);
//   run.feed(Tensor::Q, q);
//   run.finish();
//   at::Tensor out = run.output(Tensor::Out);
//   run.restart(comm, options);    // the next layer or step: same slots, same bound tensors
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>

#include "armillary/kernel/block_attention.h"
#include "armillary/plan/words.h"
#include "armillary/runtime/compiled_program.h"
#include "armillary/runtime/machine.h"

namespace armillary::runtime {

/// Options of one run. Head-wise tensors cover all query heads of the problem, not those of a rank.
struct ExecutionOptions {
  kernel::Score score;  ///< scale, softcap, ALiBi slopes, dropout
  /// Attention sinks: one logit per query head, in the accumulator dtype; undefined for none. They
  /// join in the plan's `finish` and get their gradient in its `delta`, so once for every row.
  at::Tensor sinks_H = {};
  bool max_logit = false;  ///< forward only: keep the largest score, for max_logit()
  /// Longest wait in seconds without a message arriving, or for one op of an asynchronous device;
  /// the communicator's timeout if not given.
  std::optional<double> timeout_s = {};
  /// Device of the ops and of memory that the caller does not place; null: the CPU. It must outlive
  /// the run.
  Device* device = nullptr;
  /// No message starts, and no run ends, before this gate is open; ops that need no message run
  /// meanwhile. Null: open. It must outlive the run.
  Gate* gate = nullptr;
  /// Flight recorder of the rank, told of every op and wait; null: none. It must outlive the run.
  recorder::Recorder* recorder = nullptr;
  /// Number of the ranks of the run in the recorder (Recorder::group).
  std::uint8_t recorded_group = 0;
};

/// Runs the program of one rank, as often as wanted, one run after the other. All that Machine says
/// holds; the calls between construction and results are its own.
class Execution final : public Machine {
 public:
  /// `slots` is memory for all slots, as release() returned it; allocated here if it is too small.
  /// @throws InvalidArgument if the communicator, the lanes or the sinks do not fit the program.
  Execution(std::shared_ptr<const CompiledProgram> compiled, comm::Communicator& comm,
            ExecutionOptions options, const at::Tensor& slots = {});
  Execution(Execution&&) noexcept = default;  ///< not during a run
  ~Execution();

  /// As Machine has it.
  void restart(comm::Communicator& comm, ExecutionOptions options, const at::Tensor& slots = {});

  /// As Machine has it; also lets go of the tensors of the options.
  at::Tensor release();

  /// This rank's part of the gradient of the sinks, [query heads] in fp64: the sum over the rows
  /// whose `delta` it computes, 0 for heads of other ranks. The sum over all ranks is the gradient.
  /// Requires finish() of a backward pass with sinks.
  const at::Tensor& sinks_grad() const { return dsinks_H_; }

  /// Largest score of the pairs that this rank attended, [query heads] in the accumulator dtype;
  /// -inf for heads without a pair. Requires finish() and `max_logit`.
  const at::Tensor& max_logit() const { return max_logit_H_; }

  /// Seconds in which the first op that attends kept this thread in the last run: all of the op on
  /// the host, its call on a device that runs ops later. 0 before there was one.
  double first_attend_s() const { return timed_s(); }
  const CompiledProgram& program() const { return *program_; }

 private:
  void take_options(ExecutionOptions options);
  // The ops of the compute lane, by kind (kOps of the source).
  using ComputeOp = void (Execution::*)(int op);
  static const std::array<ComputeOp, plan::kOpKinds> kOps;
  void run(int op) override { (this->*kOps[program_->ops[op].op->kind.number()])(op); }
  void message(int op);
  void merge(int op);
  void add(int op);
  void copy(int op);
  void clear(int op);
  void delta(int op);
  void finish_rows(int op);
  void attend(int op);
  void attend_all(int op);
  void attend_grad(int op);
  void attend_grad_all(int op);
  std::size_t segments_of(int op) const { return program_->ops[op].views[0].segments.size(); }
  at::Tensor heads_of(const at::Tensor& x_H, const plan::LocatedView& view) const;

  std::shared_ptr<const CompiledProgram> program_;
  ExecutionOptions options_;
  at::Tensor dsinks_H_;     ///< undefined without sinks
  at::Tensor max_logit_H_;  ///< undefined unless options_.max_logit
};

}  // namespace armillary::runtime
