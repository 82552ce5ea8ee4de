// context.h: what the runs of one rank share: its group, its device, executions at rest with their
// memory, and what callers keep with them.
#pragma once

#include <memory>

#include "armillary/comm/communicator.h"
#include "armillary/runtime/device.h"
#include "armillary/runtime/resting_executions.h"

namespace armillary::runtime {

/// The context of one end of a group, kept with it, so a process may have several ranks, and a rank
/// several groups. Kept elsewhere: compiled programs, which do not change, for the process
/// (program_cache.h); scratch of the CPU kernels, by thread. Threads: that of the rank. Gone with
/// the communicator.
class Context {
 public:
  /// That of `comm`, made when it is first asked for.
  static Context& of(comm::Communicator& comm) { return comm.attachment<Context>(); }

  /// Runs begun from now on use `device`, backward passes of earlier calls too; the CPU before.
  /// @throws InvalidArgument while a call is in progress.
  void use(std::shared_ptr<Device> device);
  Device& device() const { return device_ == nullptr ? cpu_device() : *device_; }

  RestingExecutions& executions() { return executions_; }

  /// Whether a call is in progress, whose messages another call would mix with its own.
  bool is_busy() const { return busy_; }
  void set_busy(bool busy) { busy_ = busy; }

 private:
  std::shared_ptr<Device> device_;  ///< Null: the CPU. Before what runs on it.
  RestingExecutions executions_;
  bool busy_ = false;
};

}  // namespace armillary::runtime
