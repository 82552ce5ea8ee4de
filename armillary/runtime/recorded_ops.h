// recorded_ops.h: the ops of one execution, as the flight recorder of the rank is told of them.
#pragma once

#include <cstdint>
#include <vector>

#include "armillary/recorder/recorder.h"
#include "armillary/runtime/compiled_program.h"

namespace armillary::runtime {

/// Between an execution and its recorder. Without a recorder every function is one comparison.
class RecordedOps {
 public:
  /// A run begins. Both arguments must outlive it; `recorder` may be null.
  void begin(recorder::Recorder* recorder, const CompiledProgram& compiled) {
    recorder_ = recorder;
    if (recorder == nullptr) return;
    compiled_ = &compiled;
    numbers_.resize(compiled.ops.size());
    recorder->begin_call(compiled.strategy, compiled.pass);
  }

  void started(int op) {
    if (recorder_ == nullptr) return;
    const CompiledOp& compiled = compiled_->ops[op];
    numbers_[op] = recorder_->start({.kind = compiled.op->kind,
                                     .lane = compiled.op->lane,
                                     .plan_step = compiled.op->step,
                                     .index = op,
                                     .peer = compiled.op->peer,
                                     .bytes = compiled.bytes});
  }

  void done(int op) {
    if (recorder_ != nullptr) recorder_->done(numbers_[op]);
  }

 private:
  recorder::Recorder* recorder_ = nullptr;
  const CompiledProgram* compiled_ = nullptr;  ///< null before the first run that is recorded
  std::vector<std::uint64_t> numbers_;         ///< by op: its number in the recorder
};

}  // namespace armillary::runtime
