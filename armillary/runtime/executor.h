// executor.h: runs a compiled program on tensors. The only place where plans meet tensors.
//
// The executor is a small machine with one in-order queue per lane:
//
//   lane 0   [attend] [attend] [merge] ..   --start(op)-------> Device        --> Event
//   lane 1   [send k, recv k] [send k ..    --start(messages)-> Communicator  --> Request
//
// An op is complete when its event (device.h) or its request is done. The next batch of a lane
// starts when two things hold: the ops it waits for are complete, or were started before it on its
// own lane of the device; and the inputs it reads were fed. Messages are in flight while the
// compute lane works. The dependencies (plan/hazards.h) and the order of messages are those that
// the verifier proved.
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

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/kernel/block_attention.h"
#include "armillary/runtime/bound_tensors.h"
#include "armillary/runtime/compiled_program.h"
#include "armillary/runtime/device.h"
#include "armillary/runtime/gate.h"
#include "armillary/runtime/recorded_ops.h"
#include "armillary/runtime/zero_copy.h"

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
};

/// Messages and bytes that a run has moved. After finish() the bytes are those of plan::traffic.
struct Moved {
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
  std::int64_t sent_messages = 0;
  std::int64_t received_messages = 0;
  std::int64_t borrowed_bytes = 0;  ///< received without a copy (zero_copy.h)
};

/// Runs the program of one rank, as often as wanted, one run after the other. Threads: one; compute
/// ops run where the device runs them. A run must not outlive its communicator.
///
/// Memory. Slots and bound tensors are made once. Each run allocates only the outputs and saved
/// tensors that the caller has not placed. This holds for fp32, bf16 and fp16 on a CPU, and for
/// inputs in which the heads and dims of a token are contiguous; other inputs are copied.
///
/// Failure. Any failure (a kernel that throws, a peer that is gone, a deadline) aborts the group:
/// every rank leaves within a second with the first reason, or when the op that its device runs is
/// over. A CommError while messages are under way names the first of them: plan step, tile, bytes,
/// peer and lane. After that nothing writes to the caller's memory, and every further call that
/// places, feeds, advances or finishes throws, as do output() and saved().
class Execution final : private Work {
 public:
  /// `slots` is memory for all slots, as release() returned it; allocated here if it is too small.
  /// @throws InvalidArgument if the communicator, the lanes or the sinks do not fit the program.
  Execution(std::shared_ptr<const CompiledProgram> compiled, comm::Communicator& comm,
            ExecutionOptions options, const at::Tensor& slots = {});
  Execution(Execution&&) noexcept = default;  ///< not during a run
  /// Drops the ops that the device has not begun, and waits for the one that it runs.
  ~Execution();

  /// Prepares another run of the same rank, on a device at the same place. Requires finish(), or a
  /// run that has not begun. A failed execution cannot restart. @throws InvalidArgument as above.
  void restart(comm::Communicator& comm, ExecutionOptions options, const at::Tensor& slots = {});

  /// Releases the tensors of the caller, results included, and returns the memory of the slots, so
  /// that another execution can use it until this one restarts.
  at::Tensor release();

  /// Provides the memory of an output, or of a tensor that forward saves; contiguous, before the
  /// first feed(). A saved tensor may be an output too, or a tile of its own: Ulysses saves `Out`
  /// of other heads than it returns. @throws InvalidArgument as feed().
  void place_output(plan::Tensor tensor, const at::Tensor& memory);
  void place_saved(plan::Tensor tensor, const at::Tensor& memory);

  /// Provides an input (in backward: dOut, or a saved tensor), contiguous or not, and starts every
  /// op that becomes possible. The work that computes the tensor may still be queued on the device
  /// (Device::caller_event): ops that read it start when it has ended. Shape [B, L, heads, dim] in
  /// the problem's dtype; Lse without dim, in the accumulator dtype.
  /// @throws InvalidArgument for another shape or dtype, or a tensor that this pass does not await.
  void feed(plan::Tensor tensor, const at::Tensor& value);

  /// Starts every op that can start, collects those that are done, and returns without waiting.
  void advance();

  /// Runs the program to its end. Also waits until peers have read all tiles that they borrow from
  /// this rank (zero_copy.h). @throws InvalidArgument if an input was not fed; PlanError if no op
  /// can ever start; Error if the device misses the timeout; CommError as the communicator.
  void finish();

  /// Returns an output, or a tensor that forward saves for backward. Requires finish().
  at::Tensor output(plan::Tensor tensor) const;
  at::Tensor saved(plan::Tensor tensor) const;

  /// This rank's part of the gradient of the sinks, [query heads] in fp64: the sum over the rows
  /// whose `delta` it computes, 0 for heads of other ranks. The sum over all ranks is the gradient.
  /// Requires finish() of a backward pass with sinks.
  const at::Tensor& sinks_grad() const { return dsinks_H_; }

  /// Largest score of the pairs that this rank attended, [query heads] in the accumulator dtype;
  /// -inf for heads without a pair. Requires finish() and `max_logit`.
  const at::Tensor& max_logit() const { return max_logit_H_; }

  /// Seconds in which the first op that attends kept this thread in the last run: all of the op on
  /// the host, its call on a device that runs ops later. 0 before there was one.
  double first_attend_s() const { return first_attend_s_; }
  const Moved& moved() const { return moved_; }
  const CompiledProgram& program() const { return *compiled_; }
  const at::Tensor& slots() const { return slots_; }  ///< kByte; undefined after release()

 private:
  /// An op that was started on the device and is not known to be done.
  struct Running {
    int op;
    EventHandle event;
  };

  /// State of the tile of an input. Other tiles are There.
  enum class Input : std::uint8_t { There, Arriving, Awaited };

  /// An input that was fed while the work that computes it may not have ended; kBegin stands for
  /// all work of the caller before the first op: it may compute tensors of the options, or still
  /// use the memory that has become a slot or a result.
  struct Arriving {
    int tile;
    EventHandle event;
  };
  static constexpr int kBegin = -1;

  // Life of a run (executor.cpp, sections 1 to 3).
  Device& device() const { return *options_.device; }
  void check_not_failed() const;
  template <class Step>
  void attempt(const Step& step);
  void place_slots(const at::Tensor& given);
  void take_slots(const at::Tensor& given);
  void release_tiles();
  bool in_slot(std::size_t tile) const {
    return compiled_->alias_of[tile] == CompiledProgram::kInSlots;
  }
  void place(const std::vector<int>& role, plan::Tensor tensor, const at::Tensor& memory);
  void place_results();
  void set_tile(int tile, const at::Tensor& memory);
  void check_fits(plan::Tensor tensor, int tile, const at::Tensor& given) const;

  // The machine: which batch may start, its start, and its end (executor_wait.cpp).
  void advance_all();
  bool gate_is_open();
  int first_in_flight() const;
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
  void wait_for_device(const EventHandle& event);
  void take_caller_event(int tile);
  std::string waited_for() const;
  bool finished() const;

  // The ops of the compute lane (executor_compute.cpp). `run` is called by the device.
  void run(int op) override;
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
  std::vector<at::Tensor> tiles_;  ///< the caller's, by tile; undefined until fed or placed
  BoundTensors bound_tensors_;
  std::int64_t slot_bytes_ = 0;
  at::Tensor slots_;     ///< undefined after release()
  bool placed_ = false;  ///< all results have memory
  bool failed_ = false;
  std::vector<Input> inputs_;      ///< by tile
  std::deque<Arriving> arriving_;  ///< in the order in which they end
  bool may_begin_ = true;          ///< kBegin is not among `arriving_`
  std::vector<bool> complete_;     ///< by op
  std::deque<Running> running_;    ///< on the device, in the order of the lane
  std::vector<std::size_t> next_;  ///< by lane: first batch that has not started
  std::vector<int> in_flight_;     ///< ops of the messages that are not done
  // Members are destroyed from the last to the first. Requests go first: a send that is withdrawn
  // may read borrowed memory. Then borrowed tiles are given back, before the memory they return to.
  ZeroCopy zero_copy_;
  std::vector<comm::Request> requests_;  ///< one for each op in flight
  // Scratch of start_messages(); kept so that starting allocates nothing.
  std::vector<comm::Strided> parts_;
  std::vector<comm::Message> messages_;
  at::Tensor dsinks_H_;     ///< undefined without sinks
  at::Tensor max_logit_H_;  ///< undefined unless options_.max_logit
  Moved moved_;
  int first_attend_;  ///< The first op that attends; as many as there are ops if none does.
  double first_attend_s_ = 0;
  RecordedOps recorded_;
};

}  // namespace armillary::runtime
