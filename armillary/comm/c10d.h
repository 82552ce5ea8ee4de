// c10d.h: ranks as processes that exchange messages through a process group of PyTorch.
//
//   run_c10d_rank(body, {.rank = 2, .world = 4})   makes a group of Gloo, on one machine or many
//   run_on_process_group("0", body)                takes one that the caller made, by its name
//   join_process_group("0")                        the ranks of one, on connections of its own
//
// Messages are sends and receives of Gloo, from and to the memory of the caller. A lane is a range
// of tags, and so is a lane of a group made by split(). Every message begins with its number of
// bytes, so the receiver knows whether the sizes are equal. Messages of up to 4 KiB follow in the
// same send, by a copy; the bytes of longer ones have a tag of their own and are not copied, unless
// they are packed because they do not lie in one row. Memory of devices is refused.
//
// A failure travels on connections of its own, beside the data. A process that ends closes them,
// so its peers leave their calls at once and name it.
//
// SIGPIPE is ignored from the first group on, unless the program handles it: Gloo writes to
// connections that a peer has closed. Builds without libtorch lack this engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "armillary/comm/communicator.h"

namespace armillary::comm {

/// All processes of a group have the same number of lanes.
struct C10dOptions {
  double timeout_s = 60;  ///< Timeout of every wait, until set_timeout(), and of making the group.
  int lanes = 8;
  /// Network interface of the connections, such as "eth0"; that of the host's name if empty.
  std::string interface;
};

/// The place where processes find each other: a TCPStore of PyTorch.
struct C10dRendezvous {
  int rank = 0;
  int world = 1;
  std::string host = "127.0.0.1";  ///< Name or address of the machine of rank 0.
  int port = 29500;
  /// For rank 0: a socket that is bound to `port` and listens, or -1 to open one. So a launcher can
  /// choose a port that is free.
  int listen_fd = -1;
  /// The store is there already, as torchrun's is, so rank 0 does not open one.
  bool store_exists = false;
  /// Begin of all keys in the store. A store that outlives a group needs another one for the next.
  std::string key_prefix = "armillary/";
};

/// Runs `body` as one rank of a new group of processes and returns when all of them have ended it.
///
/// (1) If a rank throws, its process throws the same exception again. The other ranks leave their
/// calls within a second, and their processes throw CommError with its text (of the first 1000
/// bytes). (2) If the group failed and a body swallowed its error, a CommError is thrown on every
/// rank. (3) A process that ends or is killed inside `body` fails the group in its own name; one
/// that does so before is noticed at the deadline. (4) Two ranks that fail at the same time each
/// know their own reason first.
///
/// @throws InvalidArgument if an option is out of range; on every rank if two processes have one
///   rank, or differ in world or lanes.
/// @throws CommError also if the interface is unknown, and if the store or a process does not come
///   within timeout_s.
void run_c10d_rank(const std::function<void(Communicator&)>& body, const C10dRendezvous& rendezvous,
                   const C10dOptions& options = {});

/// The same in a process group that is registered with c10d under `group_name`
/// (`ProcessGroup.group_name` in Python), with its ranks. Its backend for CPU tensors must be Gloo.
/// The caller's own messages with tags of 2^30 and more, and a second use at the same time, would
/// meet these. After a failure the process group can no longer be used.
///
/// @throws InvalidArgument also if there is no such group, or it has no Gloo or no store.
void run_on_process_group(const std::string& group_name,
                          const std::function<void(Communicator&)>& body,
                          const C10dOptions& options = {});

/// This process's end of a group that the ranks may join again.
class JoinedCommunicator : public Communicator {
 public:
  using Communicator::Communicator;
  /// Whether the group is over without a failure that this rank has to hear: others have left it,
  /// or failed while they waited for this rank as long as they wait for anyone. A rank that finds
  /// it so before a call joins again.
  virtual bool is_left() = 0;
  /// Whether the group failed by what another rank told: its error, or its deadline.
  virtual bool is_told() = 0;
  /// For a rank whose call has failed, before it drops the group. If the failure is its own, it
  /// returns when all others have heard of it in a call of theirs, or after `most_s`. A rank that
  /// has not heard of it by then has left the call out, and is_left() tells it so.
  virtual void wait_told(double most_s) = 0;
};

/// This process's end of a new group with the ranks of a process group, whatever its backend is,
/// for callers that live as long as their process group: nothing runs inside of a function here.
/// Connections are new ones of Gloo, so a failure leaves the process group as it was, and after one
/// the ranks may join again. Collective: ranks that come within timeout_s of each other meet,
/// however often each has come before, alone or too late.
///
/// Destroying it tells the peers and does not wait for their part: a peer that sends to this rank
/// afterwards fails. It returns when they know, within a second and a half. A failure of the group
/// is told by the calls of the Communicator alone.
///
/// @throws InvalidArgument if there is no such group, or it has no store; else as run_c10d_rank.
std::unique_ptr<JoinedCommunicator> join_process_group(const std::string& group_name,
                                                       const C10dOptions& options = {});

}  // namespace armillary::comm
