// machine.h: runs a prepared program on tensors, whatever its compute ops do.
//
// The machine has one in-order queue per lane:
//
//   lane 0   [attend] [attend] [merge] ..   --start(op)-------> Device        --> Event
//   lane 1   [send k, recv k] [send k ..    --start(messages)-> Communicator  --> Request
//
// An op is complete when its event (device.h) or its request is done. The next batch of a lane
// starts when two things hold: the ops it waits for are complete, or were started before it on its
// own lane of the device; and the inputs it reads were fed. Messages are in flight while the
// compute lane works. The dependencies (plan/program/hazards.h) and the order of messages are those
// that the verifier proved.
//
// The compute ops of a vocabulary are those of a class that is derived: `run` is called, op by op,
// with all operands bound to memory (`part`). Attention is executor.h.
//
//   class Gather final : public Machine {
//     void run(int op) override { part(op, 0, 0).copy_(part(op, 1, 0)); }
//   };
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/runtime/bound_tensors.h"
#include "armillary/runtime/device.h"
#include "armillary/runtime/gate.h"
#include "armillary/runtime/machine_program.h"
#include "armillary/runtime/recorded_ops.h"
#include "armillary/runtime/zero_copy.h"

namespace armillary::runtime {

/// Options of one run.
struct RunOptions {
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

/// Messages and bytes that a run has moved. After finish() the bytes are those of plan::traffic.
struct MovedCounts {
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
class Machine : protected Work {
 public:
  /// Prepares another run of the same rank, on a device at the same place. Requires finish(), or a
  /// run that has not begun. A failed execution cannot restart. @throws InvalidArgument as above.
  void restart(comm::Communicator& comm, const RunOptions& options, const at::Tensor& slots = {});

  /// Releases the tensors of the caller, results included, and returns the memory of the slots, so
  /// that another execution can use it until this one restarts.
  at::Tensor release();

  /// Provides the memory of an output, or of a tensor that the program saves; contiguous, before
  /// the first feed(). A saved tensor may be an output too, or a tile of its own: Ulysses saves
  /// `Out` of other heads than it returns. @throws InvalidArgument as feed().
  void place_output(plan::TensorId tensor, const at::Tensor& memory);
  void place_saved(plan::TensorId tensor, const at::Tensor& memory);

  /// Provides a tile of the caller (MachineProgram::given), contiguous or not, and starts every op
  /// that becomes possible. The work that computes the tensor may still be queued on the device
  /// (Device::caller_event): ops that read it start when it has ended. Shape and dtype are those of
  /// the tile. @throws InvalidArgument for others, or a tensor that this program does not await.
  void feed(plan::TensorId tensor, const at::Tensor& value);

  /// Starts every op that can start, collects those that are done, and returns without waiting.
  void advance();

  /// Runs the program to its end. Also waits until peers have read all tiles that they borrow from
  /// this rank (zero_copy.h). @throws InvalidArgument if an input was not fed; PlanError if no op
  /// can ever start; Error if the device misses the timeout; CommError as the communicator.
  void finish();

  /// Returns an output, or a tensor that the program saves. Requires finish().
  at::Tensor output(plan::TensorId tensor) const;
  at::Tensor saved(plan::TensorId tensor) const;

  const MovedCounts& moved() const { return moved_; }
  const at::Tensor& slots() const { return slots_; }  ///< kByte; undefined after release()

 protected:
  /// `slots` is memory for all slots, as release() returned it; allocated here if it is too small.
  /// @throws InvalidArgument if the communicator or its lanes do not fit the program.
  Machine(std::shared_ptr<const MachineProgram> compiled, comm::Communicator& comm,
          const RunOptions& options, const at::Tensor& slots = {});
  Machine(Machine&&) noexcept = default;  ///< not during a run
  /// A derived class calls drain() in its own destructor, while its ops can still run.
  ~Machine() = default;
  /// Drops the ops that the device has not begun, and waits for the one that it runs.
  void drain() noexcept;

  /// Operand of an op in one segment: [B, tokens of the segment, heads of the view, dim].
  const at::Tensor& part(int op, std::size_t operand, std::size_t segment) const {
    return bound_tensors_.at(op, operand, segment);
  }
  Device& device() const { return *options_.device; }
  void check_not_failed() const;
  /// Notes how long the start of this op keeps the thread; -1: none.
  void time_op(int op) { timed_op_ = op; }
  double timed_s() const { return timed_s_; }  ///< 0 before there was one

 private:
  /// An op that was started on the device and is not known to be done.
  struct Running {
    int op;
    EventHandle event;
  };

  /// State of the tile of an input. Other tiles are There.
  enum class InputState : std::uint8_t { There, Arriving, Awaited };

  /// An input that was fed while the work that computes it may not have ended; kBegin stands for
  /// all work of the caller before the first op: it may compute tensors of the options, or still
  /// use the memory that has become a slot or a result.
  struct Arriving {
    int tile;
    EventHandle event;
  };
  static constexpr int kBegin = -1;

  // Life of a run (machine.cpp, sections 1 to 3).
  template <class Step>
  void attempt(const Step& step);
  void place_slots(const at::Tensor& memory);
  void take_slots(const at::Tensor& memory);
  void release_tiles();
  bool in_slot(std::size_t tile) const {
    return compiled_->alias_of[tile] == MachineProgram::kInSlots;
  }
  void place(const std::vector<int>& role, plan::TensorId tensor, const at::Tensor& memory);
  void place_results();
  void set_tile(int tile, const at::Tensor& memory);
  void check_fits(plan::TensorId tensor, int tile, const at::Tensor& value) const;

  // The machine: which batch may start, its start, and its end (machine_wait.cpp).
  void advance_all();
  bool gate_is_open();
  int first_in_flight() const;
  bool start_ready();
  bool ready(const MachineBatch& batch) const;
  bool is_over(int op, plan::Lane lane) const;
  void start(const MachineBatch& batch);
  void start_messages(const MachineBatch& batch);
  std::size_t parts_of(const CompiledOp& message) const;
  void add_parts(int op);
  void add_parts(int op, std::size_t view);
  bool collect_done();
  void wait_for_any();
  void wait_for_device(const EventHandle& event);
  void take_caller_event(int tile);
  std::string waited_for() const;
  bool finished() const;

  int tile_of(const std::vector<int>& role, plan::TensorId tensor) const;

  std::shared_ptr<const MachineProgram> compiled_;
  comm::Communicator* comm_;
  RunOptions options_;
  std::vector<at::Tensor> tiles_;  ///< the caller's, by tile; undefined until fed or placed
  BoundTensors bound_tensors_;
  std::int64_t slot_bytes_ = 0;
  at::Tensor slots_;     ///< undefined after release()
  bool placed_ = false;  ///< all results have memory
  bool failed_ = false;
  std::vector<InputState> inputs_;  ///< by tile
  std::deque<Arriving> arriving_;   ///< in the order in which they end
  bool may_begin_ = true;           ///< kBegin is not among `arriving_`
  std::vector<bool> complete_;      ///< by op
  std::deque<Running> running_;     ///< on the device, in the order of the lane
  std::vector<std::size_t> next_;   ///< by lane: first batch that has not started
  std::vector<int> in_flight_;      ///< ops of the messages that are not done
  // Members are destroyed from the last to the first. Requests go first: a send that is withdrawn
  // may read borrowed memory. Then borrowed tiles are given back, before the memory they return to.
  ZeroCopy zero_copy_;
  std::vector<comm::Request> requests_;  ///< one for each op in flight
  // Scratch of start_messages(); kept so that starting allocates nothing.
  std::vector<comm::Strided> parts_;
  std::vector<comm::Message> messages_;
  MovedCounts moved_;
  int timed_op_ = -1;
  double timed_s_ = 0;
  RecordedOps recorded_;
};

}  // namespace armillary::runtime
