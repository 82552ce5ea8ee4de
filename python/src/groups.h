// groups.h: one communicator for each process group that is used, made when it is first needed.
//
//   group name --resolve--> ProcessGroup --first use--> Communicator     kept until the process
//                                                                        group is destroyed
//
// The registry is the only state of the package. It holds no process group alive, and knows one
// that was destroyed, or made again under the same name, by its object. A communicator that has
// failed is dropped once its failure was thrown; the next use joins the ranks again. A failure is
// thrown once on each rank: in its call, or in its next one if it comes before the rank that failed
// has waited for its timeout, or ten seconds. One that comes later has left that call out, and
// joins the others again in its next one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "armillary/attention/attention_in_progress.h"
#include "armillary/comm/communicator.h"

namespace armillary::python {

/// A group as the ops name it: that of c10d::ProcessGroup, or empty for a group of one rank.
struct GroupUse {
  std::string name;
  double timeout_s = 60;  ///< Timeout of joining, and of waits in the call.
  /// The call that the use goes on with; null for a use by itself.
  std::shared_ptr<attention::AttentionInProgress> call = {};
};

/// Calls the action with the group's communicator. Calls of one group run one after the other,
/// whatever their threads. Collective if the group is used for the first time. Until a call that
/// begin_on_group began is over, a use that does not go on with it drops it and is refused, on all
/// ranks.
/// @throws what the action throws; InvalidArgument if there is no such group, or it was made before
/// this process was forked, or another call is in progress in it; CommError as
/// comm::join_process_group, or if the call of the use was dropped.
void on_group(const GroupUse& use, const std::function<void(comm::Communicator&)>& action);

/// Begins a call that takes several uses of its group. The group holds it until it is over, and
/// drops it before the communicator goes: the group has failed, or was left. @throws as on_group.
using Begin = std::function<attention::AttentionInProgress(comm::Communicator&)>;
std::shared_ptr<attention::AttentionInProgress> begin_on_group(const GroupUse& use,
                                                               const Begin& begin);

/// Refuses the call of this rank, also one that is in progress, and that of all ranks of the group
/// that are in one. They have ten seconds at most to hear it. @throws InvalidArgument with this
/// text.
[[noreturn]] void refuse_on_group(const GroupUse& use, const std::string& text);

/// A communicator of the caller's own with the ranks of the group, beside that of on_group; it
/// lives as long as the caller wants. Collective. @throws as on_group.
std::unique_ptr<comm::Communicator> join_group(const GroupUse& use);

/// Marks groups as those of the parent of this process, whose uses are refused: their connections
/// are the parent's. For a child that has just been forked, before it has threads.
void inherit_groups(const std::vector<std::string>& names);

/// Rank and world of a group, and a number that no other group has while this one exists.
/// @throws InvalidArgument if there is no such group.
struct GroupSize {
  int rank = 0;
  int world = 1;
  std::uintptr_t id = 0;
};
GroupSize size_of_group(const std::string& name);

/// Leaves all groups, without waiting for other ranks; the next use of one joins it again.
void leave_groups();

/// Leaves the group of this id likewise. Does nothing if it was not used: a group made later under
/// its name goes on.
void leave_group(const std::string& name, std::uintptr_t id);

}  // namespace armillary::python
