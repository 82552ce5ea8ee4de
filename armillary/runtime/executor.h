// executor.h: the reader that runs a plan on tensors. The only place where plans meet tensors.
//
// A small machine with one in-order queue per lane. An op is complete when its event is (device.h)
// or its message has passed. The next batch of a lane starts as soon as the ops it waits for are
// complete, or were started before it on its own lane, and the inputs it reads are fed; sends and
// receives are under way while the compute lane works. What the verifier proved of the plan is what
// happens here: the same dependencies (plan/hazards.h), the same order of messages.
//
//   Execution run(compiled, comm, options);
//   run.feed(Tensor::K, k);        // sends of k alone start while v and q are still projected
//   run.feed(Tensor::V, v);
//   run.feed(Tensor::Q, q);
//   run.finish();
//   at::Tensor out = run.output(Tensor::Out);
//   run.restart(comm, options);    // the next layer or step: same slots, same operands
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/kernel/block_attention.h"
#include "armillary/runtime/compiled_program.h"
#include "armillary/runtime/device.h"
#include "armillary/runtime/gate.h"
#include "armillary/runtime/loans.h"
#include "armillary/runtime/operands.h"

namespace armillary::runtime {

struct ExecutionOptions {
  kernel::Score score;  ///< Slopes are those of all query heads.
  /// Attention sinks: one logit for each of all query heads, in the accumulator dtype. They join in
  /// the plan's `finish`, and get their gradient at its `delta`: once for every row.
  at::Tensor sinks_H = {};
  bool max_logit = false;  ///< Forward only: for max_logit().
  /// Longest that a run waits for its peers without any message arriving, or for one op of a device
  /// that runs it later; the communicator's own timeout if not given.
  std::optional<double> timeout_s = {};
  /// Where ops run, and memory that the caller has not placed lies; null: the CPU. Outlives the
  /// run.
  Device* device = nullptr;
  /// No message starts, and no run ends, before it is open; what needs no message is computed
  /// meanwhile. Null: it is. Lives as long as the run.
  Gate* gate = nullptr;
};

/// What a run has moved. Bytes are those of plan::traffic of the program once it is finished.
struct Moved {
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
  std::int64_t sent_messages = 0;
  std::int64_t received_messages = 0;
  std::int64_t borrowed_bytes = 0;  ///< Of those received: read where the sender has them.
};

/// Runs of one rank's program, one after the other. One thread; compute ops run where the device
/// runs them. A run must not outlive its communicator.
///
/// What plans hold beside the caller's tensors, slots and the operands of ops, is made once. A run
/// allocates its outputs and what forward saves, where the caller has not placed them, and nothing
/// else: fp32, bf16 and fp16 on a CPU, inputs whose heads and dims are neighbours.
///
/// A failure of any kind (a kernel that throws, a peer that is gone, a deadline) aborts the group,
/// so that every rank leaves within a second with the first reason, and as soon as the op that its
/// device runs is over. Then nothing writes the caller's memory any more, and whatever is asked of
/// the run throws.
class Execution final : private Work {
 public:
  /// `slots` is memory for all slots, of release(); if there is too little, it is allocated.
  Execution(std::shared_ptr<const CompiledProgram> compiled, comm::Communicator& comm,
            ExecutionOptions options, const at::Tensor& slots = {});
  Execution(Execution&&) noexcept = default;  ///< Not while a run is under way.
  /// Waits for what the device runs of it.
  ~Execution();

  /// Makes it ready for another run, of the same rank. Requires finish(), or a run that has not
  /// begun; one that failed is over for good.
  void restart(comm::Communicator& comm, ExecutionOptions options, const at::Tensor& slots = {});

  /// Lets go of the caller's tensors, results too, and of the memory of the slots, for another
  /// execution to use until this one runs again.
  at::Tensor release();

  /// Gives the memory of an output, or of what forward saves (an output too, or a tile of its own:
  /// `Out` of Ulysses has other heads then): contiguous. Before the first feed().
  /// @throws InvalidArgument as feed().
  void place_output(plan::Tensor tensor, const at::Tensor& memory);
  void place_saved(plan::Tensor tensor, const at::Tensor& memory);

  /// Gives an input (in backward: dOut, or a saved tensor), contiguous or not: [B, L, heads, dim]
  /// in the problem's dtype; Lse in its accumulator. Starts whatever it makes possible.
  /// @throws InvalidArgument on a shape or dtype that differs, or a tensor that is not awaited.
  void feed(plan::Tensor tensor, const at::Tensor& value);

  /// Starts what can start and returns without waiting.
  void advance();

  /// Runs to the end, also of what peers read in this rank's memory (loans.h). @throws
  /// InvalidArgument if an input was not fed; CommError as the communicator.
  void finish();

  /// An output, or a tensor that forward saves for backward. Requires finish().
  at::Tensor output(plan::Tensor tensor) const;
  at::Tensor saved(plan::Tensor tensor) const;

  /// This rank's share of the gradient of the sinks: the sum over the rows whose `delta` it makes,
  /// fp64, 0 for heads of others. The sum over the ranks is the gradient. Requires finish() of a
  /// backward pass with sinks.
  const at::Tensor& sinks_grad() const { return dsinks_H_; }

  /// Largest score of the pairs that this rank attended, for each of all query heads, in the
  /// accumulator dtype; -inf if none. Requires finish() and `max_logit`.
  const at::Tensor& max_logit() const { return max_logit_H_; }

  const Moved& moved() const { return moved_; }
  const CompiledProgram& program() const { return *compiled_; }
  const at::Tensor& slots() const { return slots_; }  ///< Bytes; undefined at rest.

 private:
  /// An op that was started on the device.
  struct Running {
    int op;
    EventHandle event;
  };

  Device& device() const { return *options_.device; }
  void check_not_failed() const;
  template <class Step>
  void attempt(const Step& step);
  void place_slots(const at::Tensor& given);
  void take_slots(const at::Tensor& given);
  void release_tiles();
  bool in_slot(std::size_t tile) const {
    return compiled_->home[tile] == CompiledProgram::kInSlots;
  }
  void place(const std::vector<int>& role, plan::Tensor tensor, const at::Tensor& memory);
  void place_results();
  void set_tile(int tile, const at::Tensor& memory);
  void check_fits(plan::Tensor tensor, int tile, const at::Tensor& given) const;

  void advance_all();
  bool gate_is_open();
  bool start_ready();
  bool ready(const Batch& batch) const;
  bool is_over(int op, plan::Lane lane) const;
  void start(const Batch& batch);
  void start_messages(const Batch& batch);
  std::size_t parts_of(const CompiledOp& message) const;
  void add_parts(int op);
  void add_parts(int op, std::size_t view);
  bool collect_done();
  void wait_for_any();
  void wait_for_device();
  bool finished() const;

  void run(int op) override;
  bool in_place(const CompiledOp& op, std::size_t target, std::size_t source) const;
  void delta(int op, std::size_t segment);
  void finish_rows(int op, std::size_t segment);
  at::Tensor heads_of(const at::Tensor& x_H, const plan::LocatedView& view) const;
  void attend(int op);
  void attend_all(int op);
  void attend_grad(int op);
  void attend_grad_all(int op);
  int tile_of(const std::vector<int>& role, plan::Tensor tensor) const;

  std::shared_ptr<const CompiledProgram> compiled_;
  comm::Communicator* comm_;
  ExecutionOptions options_;
  std::vector<at::Tensor> tiles_;  ///< Those of the caller; undefined while they are not there.
  Operands operands_;
  std::int64_t slot_bytes_ = 0;
  at::Tensor slots_;     ///< Undefined at rest.
  bool placed_ = false;  ///< All results have memory.
  bool failed_ = false;
  std::vector<bool> awaited_;      ///< By tile: the caller has not fed it yet.
  std::vector<bool> complete_;     ///< By op.
  std::deque<Running> running_;    ///< On the device, in the order of the lane.
  std::vector<std::size_t> next_;  ///< By lane: first batch that has not started.
  std::vector<int> flying_;        ///< Ops of the messages under way.
  Loans loans_;  ///< After operands_ and tiles_: given back before the memory is gone.
  std::vector<comm::Request> requests_;  ///< Of what flies. Dropped first: it may pass on a loan.
  // Of the batch that starts; kept for their memory.
  std::vector<comm::Strided> parts_;
  std::vector<comm::Message> messages_;
  at::Tensor dsinks_H_;     ///< Undefined without sinks.
  at::Tensor max_logit_H_;  ///< Undefined unless it was asked for.
  Moved moved_;
};

}  // namespace armillary::runtime
