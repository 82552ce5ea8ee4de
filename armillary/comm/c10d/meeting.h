// meeting.h: how the ranks of a group find each other in a store. Internal to connect.h.
//
//   rank r   record r = "a world of 4 and 8 lanes" ---> reads the records of all ranks
//   first to see all, or to give up ---> outcome: met | refused, why | given up, who did not come
//
// The outcome is set once, so all ranks of a meeting have one. A process group may meet again and
// again: its meetings are numbered, the newest number stands in the store, and a rank enters no
// meeting that is over. So ranks that come the same number of times too late, or not at all, find
// each other in the newest one.
#pragma once

#include <string>
#include <vector>

#include "armillary/comm/c10d.h"
#include "armillary/comm/c10d/gloo.h"
#include "armillary/comm/liveness/peer_process.h"

namespace armillary::comm {

/// One process of a group that is being made.
struct Member {
  std::string caller;  ///< The function that error texts begin with.
  int rank = 0;
  int world = 1;
  std::string prefix;  ///< The start of the group's keys in the store.
};

// Both return the processes when all ranks have come with equal worlds and lanes. They throw
// InvalidArgument on every rank if worlds or lanes differ, or two processes have one rank;
// CommError if ranks do not come within options.timeout_s, or their processes have ended, or the
// store fails.

/// The only meeting of a group.
std::vector<PeerProcess> meet(c10d::Store& store, const Member& mine, const C10dOptions& options);

/// The newest meeting of a process group, one more if that is over. Adds its number to the prefix
/// of `mine`. A rank that waits in one which others gave up without it goes on to the next. A
/// refusal is thrown once on each rank. Keys of meetings but the last two are removed.
std::vector<PeerProcess> meet_again(c10d::Store& store, Member& mine, const C10dOptions& options);

}  // namespace armillary::comm
