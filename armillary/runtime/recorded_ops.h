// recorded_ops.h: the ops of one execution, as the flight recorder of the rank is told of them.
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/host/recorder/recorder.h"
#include "armillary/runtime/machine_program.h"

namespace armillary::runtime {

/// Between an execution and its recorder. Without a recorder every function is one comparison.
///
/// Events with nothing between them happen at the same time, so they share a look at the clock: the
/// end of an op and the start of the next, the messages of a batch.
class RecordedOps {
 public:
  /// A run begins. The arguments must outlive it, and `compiled` is always the same; `recorder` may
  /// be null. `comm` may be a part of the group that records, whose ranks the peers of its messages
  /// are recorded as.
  void begin(recorder::Recorder* recorder, const MachineProgram& compiled,
             const comm::Communicator& comm) {
    recorder_ = recorder;
    comm_ = &comm;
    call_ = {};
    if (recorder == nullptr) return;
    if (ops_.empty()) describe(compiled);
    const std::uint8_t words = recorder->words(compiled.words());
    if (words != words_) {
      for (recorder::StartedOp& op : ops_) op.words = words;
      words_ = words;
    }
    call_ = recorder->begin_call(compiled.strategy, words, compiled.pass, look());
  }

  void started(int op) {
    if (recorder_ == nullptr) return;
    recorder::StartedOp started = ops_[op];
    if (started.peer >= 0) started.peer = comm_->root_rank(started.peer);
    numbers_[op] = recorder_->start(started, call_, at_ns_ != 0 ? at_ns_ : look());
  }
  void finish(int op) {
    if (recorder_ == nullptr) return;
    recorder_->finish(numbers_[op], at_ns_ != 0 ? at_ns_ : look());
  }

  /// The number of the run's call in the recorder; 0 without one.
  std::int32_t call() const { return call_.number; }

  /// Work was done, or may have been, since the last event.
  void time_passed() { at_ns_ = 0; }

 private:
  void describe(const MachineProgram& compiled) {
    numbers_.resize(compiled.ops.size());
    for (const CompiledOp& op : compiled.ops) {
      ops_.push_back({.kind = op.op->kind,
                      .lane = static_cast<std::int16_t>(op.op->lane),
                      .plan_step = op.op->step,
                      .index = static_cast<std::int32_t>(ops_.size()),
                      .peer = op.op->peer,
                      .bytes = op.bytes});
    }
  }
  std::int64_t look() { return at_ns_ = recorder::monotonic_ns(); }

  recorder::Recorder* recorder_ = nullptr;
  const comm::Communicator* comm_ = nullptr;  ///< that of the run
  recorder::BegunCall call_;                  ///< that of the run
  std::uint8_t words_ = 0;                    ///< that of `ops_` in the recorder
  std::int64_t at_ns_ = 0;                    ///< time of the last event; 0 if it has passed
  std::vector<recorder::StartedOp> ops_;      ///< empty before the first run that is recorded
  std::vector<std::uint64_t> numbers_;        ///< by op: its number in the recorder
};

}  // namespace armillary::runtime
