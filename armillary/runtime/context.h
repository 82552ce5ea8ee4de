// context.h: everything that the runs of one rank share: the device, the flight recorder, and the
// pool of executions with their memory.
//
//   Communicator --attachment--> Context --> Device             (device.h)
//                                        |-> Recorder           (recorder/recorder.h)
//                                        '-> ExecutionPool      (execution_pool.h)
#pragma once

#include <memory>
#include <string>

#include "armillary/comm/communicator.h"
#include "armillary/recorder/recorder.h"
#include "armillary/runtime/device.h"
#include "armillary/runtime/execution_pool.h"

namespace armillary::runtime {

/// State of one rank in one group. It is attached to the rank's end of the group and destroyed with
/// it, so a process may hold several ranks and a rank several groups.
///
/// Compiled programs are not part of it: they are immutable and shared by the process
/// (program_cache.h). Nor is the workspace of the CPU kernels, which is thread-local.
/// Threads: only the thread of the rank.
class Context {
 public:
  /// The context of `comm`; created on first use.
  static Context& of(comm::Communicator& comm) { return comm.attachment<Context>(); }

  /// Selects the device of all later runs, backward passes of earlier calls included. The default
  /// is the CPU. @throws InvalidArgument while a call is in progress.
  void use(std::shared_ptr<Device> device);
  Device& device() const { return device_ == nullptr ? cpu_device() : *device_; }

  /// Opens the flight recorder of this rank of `comm` in a run folder, and tells it of all later
  /// runs. By default there is none. @throws IoError as Recorder.
  void record_in(const std::string& run_folder, const comm::Communicator& comm);
  void stop_recording() { recorder_.reset(); }  ///< Not during a run.
  recorder::Recorder* recorder() const { return recorder_.get(); }

  ExecutionPool& executions() { return executions_; }

  /// Whether a call is in progress. A second call would mix its messages with those of the first.
  bool is_busy() const { return busy_; }
  void set_busy(bool busy) { busy_ = busy; }

 private:
  std::shared_ptr<Device> device_;  ///< null: the CPU; declared first, so it outlives executions_
  std::unique_ptr<recorder::Recorder> recorder_;
  ExecutionPool executions_;
  bool busy_ = false;
};

}  // namespace armillary::runtime
