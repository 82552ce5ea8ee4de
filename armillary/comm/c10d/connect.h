// connect.h: how the processes of a group find each other, or refuse to be one group. Internal to
// c10d.h.
//
//   meet in the store (meeting.h) ---> two groups of Gloo, for messages and for failures
#pragma once

#include <string>
#include <vector>

#include "armillary/comm/c10d.h"
#include "armillary/comm/c10d/gloo.h"
#include "armillary/comm/liveness/peer_process.h"

namespace armillary::comm {

/// Groups of Gloo with the same ranks, and the store where they met, which has to live as long as
/// ranks may still look into it.
struct C10dConnections {
  GlooStore store;
  GlooBackend data;                         ///< Messages. May be the caller's.
  GlooBackend control;                      ///< Failures.
  std::vector<PeerProcess> processes = {};  ///< By rank.
};

// These functions return, or throw, within a second of options.timeout_s. They throw as the
// functions of c10d.h do.

/// Connects the ranks of a new group.
C10dConnections connect(const C10dRendezvous& rendezvous, const C10dOptions& options);
/// Connects the ranks of a process group, for failures.
C10dConnections connect(const std::string& group_name, const C10dOptions& options);
/// Connects the ranks of a process group, for messages and for failures.
C10dConnections connect_apart(const std::string& group_name, const C10dOptions& options);

/// The TCPStore of a new group. @throws CommError if it cannot be opened or reached in time.
GlooStore open_store(const C10dRendezvous& rendezvous, double timeout_s);

}  // namespace armillary::comm
