// abort_channel.h: the failure of a group of processes, and the way it reaches all ranks beside the
// messages. Internal to mpi.h.
//
//   rank 2   raise(reason) -> poll() --- notice ---> rank 0, 1, 3: poll() -> raised
//
// A rank that waits for long asks on the same way how far others are (heartbeat.h).
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "armillary/comm/liveness/heartbeat.h"
#include "armillary/comm/notice.h"
#include "armillary/core/error.h"

namespace armillary::comm {

/// One rank's end of the abort channel. Only the first failure counts, as this rank sees it: that
/// of another rank if its notice is received before this rank fails. raise(), raised(), rank() and
/// error() may be called from any thread; the other functions call MPI and require the lock of
/// MpiProcess.
class MpiAbortChannel {
 public:
  /// `comm` carries notices and nothing else, and stays the caller's. `heartbeat` is the answer to
  /// ranks that ask.
  MpiAbortChannel(MPI_Comm comm, OwnHeartbeat& heartbeat);

  /// Records the first failure, in the name of `rank`, and tells it with the next poll(); does
  /// nothing for later ones.
  void raise(int rank, const std::string& reason) { record(rank, reason, true); }
  bool raised() const { return raised_.load(std::memory_order_acquire); }
  /// Whether a failure was raised here and its notices are not sent yet.
  bool waits_to_send() const { return raised() && !sent_ && tells_; }
  /// The rank that failed first. Requires raised().
  int failed_rank() const { return failed_rank_; }
  /// "rank R failed: <reason>". Requires raised().
  CommError error() const;

  /// Sends a failure that was raised here to all, receives notices that have come, and answers
  /// ranks that ask.
  void poll();
  /// Asks a rank for its heartbeat, unless its answer to the last question is still missing.
  void ask(int rank);
  /// The answers that have come since the last call, with their ranks.
  std::vector<std::pair<int, Heartbeat>> take_answers() { return std::exchange(answers_, {}); }
  /// Nobody is asked or answered any more.
  void stop_asking() { asks_ = false; }
  /// Tells all ranks that this rank unwinds and drops messages: they must not leave its sends
  /// without a receive. The failure itself follows, when its reason is known.
  void announce_leaving();
  /// Whether a peer has announced that it unwinds; whether any has.
  bool is_leaving(int peer) const { return leaving_[peer]; }
  bool any_leaving() const { return any_leaving_; }

  /// Whether all notices that were sent are out of this rank's memory.
  bool quiet();
  /// Notices sent to `peer`, and received from it.
  std::int64_t notice_count(int peer) const { return notices_sent_[peer]; }
  std::int64_t received(int peer) const { return notices_received_[peer]; }

 private:
  /// A notice on its way. It stays where it is until MPI has sent it.
  struct MpiNotice {
    Notice notice;
    MPI_Request request;
  };

  /// `tells`: the others do not know of it yet.
  void record(int rank, const std::string& reason, bool tells);
  void take(const Notice& notice, int from);
  /// Starts to send a copy of the notice to every other rank, or to one.
  void send_to_all(const Notice& notice);
  void send(const Notice& notice, int peer);
  /// Forgets notices that MPI has sent.
  void forget_sent();

  const MPI_Comm comm_;
  int self_ = 0;
  int world_ = 1;

  std::mutex mutex_;  ///< Guards the first failure while it is recorded.
  std::atomic<bool> raised_{false};
  int failed_rank_ = -1;
  std::string text_;
  bool tells_ = false;  ///< The first failure was raised here.

  // The rest is guarded by the lock of MpiProcess.

  bool sent_ = false;
  bool announced_leaving_ = false;
  bool any_leaving_ = false;
  std::vector<char> leaving_;
  OwnHeartbeat& heartbeat_;
  bool asks_ = true;
  std::vector<char> asked_;  ///< Per rank: it owes an answer.
  std::vector<std::pair<int, Heartbeat>> answers_;
  std::list<MpiNotice> outgoing_;
  std::vector<std::int64_t> notices_sent_;
  std::vector<std::int64_t> notices_received_;
};

}  // namespace armillary::comm
