// rank.h: everything that one rank has once, in however many groups it is: the device, the flight
// recorder, and the pool of executions with their memory.
//
//   world, and all groups made of it --of--> Rank --> Device          (device.h)
//                                             |-----> Recorder        (host/recorder/recorder.h)
//                                             |-----> ExecutionPool   (execution_pool.h)
//                                             '-----> GroupState      (group_state.h), one a group
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "armillary/comm/communicator.h"
#include "armillary/comm/rank_state.h"
#include "armillary/host/recorder/recorder.h"
#include "armillary/runtime/device.h"
#include "armillary/runtime/execution_pool.h"

namespace armillary::runtime {

struct GroupState;

/// State of one rank. The group that was split first keeps it (Communicator::rank_state), so it
/// dies with that group, and a process may hold several ranks.
///
/// Compiled programs are not part of it: they are immutable and shared by the process
/// (program_cache.h). Nor is the workspace of the CPU kernels, which is thread-local.
/// Threads: only the thread of the rank.
class Rank : public comm::RankState {
 public:
  /// The same object for a group and every group that split() made of it, those of a mesh too;
  /// created on first use.
  static Rank& of(const comm::Communicator& comm);
  explicit Rank(const comm::Communicator& root);  ///< For of().
  ~Rank() override;

  /// Selects the device of all later runs, backward passes of earlier calls included. The default
  /// is the CPU. @throws InvalidArgument while a call is in progress in one of the groups.
  void use(std::shared_ptr<Device> device);
  Device& device() const { return device_ == nullptr ? cpu_device() : *device_; }

  /// Opens the flight recorder of this rank in a run folder, and tells it of all later runs, in
  /// whichever group. Files and ops have the ranks of the group that was split first. By default
  /// there is none. @throws IoError as Recorder.
  void record_in(const std::string& run_folder);
  void stop_recording() { recorder_.reset(); }  ///< Not during a run.
  recorder::Recorder* recorder() const { return recorder_.get(); }
  /// The number of a group's ranks in its file (Recorder::group); 0 without a recorder.
  std::uint8_t recorded_group(const comm::Communicator& comm);

  ExecutionPool& executions() { return executions_; }

  /// State of this rank in one of its groups, created on first use. It dies with the group.
  GroupState& group(const comm::Communicator& comm);
  void forget(const comm::Communicator& group) noexcept override;

 private:
  const comm::Communicator& root_;
  std::shared_ptr<Device> device_;  ///< null: the CPU; declared first, so it outlives executions_
  std::unique_ptr<recorder::Recorder> recorder_;
  ExecutionPool executions_;
  std::map<const comm::Communicator*, std::unique_ptr<GroupState>> groups_;
};

}  // namespace armillary::runtime
