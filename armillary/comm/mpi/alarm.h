// alarm.h: the failure of a group of processes, and the way it reaches all ranks beside the
// messages. Internal to mpi.h.
//
//   rank 2   raise(reason) -> poll() --- notice ---> rank 0, 1, 3: poll() -> raised
//
// A notice is 1 KiB, small enough that MPI sends it without asking the receiver first.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::comm {

/// One rank's end of the alarm. Only the first failure counts, as this rank sees it: that of
/// another rank if its notice is received before this rank fails. raise(), raised(), rank() and
/// error() may be called from any thread; the other functions call MPI and require the lock of
/// MpiProcess.
class MpiAlarm {
 public:
  /// `comm` carries notices and nothing else, and stays the caller's.
  explicit MpiAlarm(MPI_Comm comm);

  /// Records the first failure, in the name of `rank`; does nothing for later ones.
  void raise(int rank, const std::string& reason);
  bool raised() const { return raised_.load(std::memory_order_acquire); }
  /// Whether a failure of this rank was raised and its notices are not sent yet.
  bool waits_to_send() const { return raised() && !sent_ && own_; }
  /// The rank that failed first. Requires raised().
  int failed_rank() const { return failed_rank_; }
  /// "rank R failed: <reason>". Requires raised().
  CommError error() const;

  /// Sends a failure of this rank to all, and receives notices that have come.
  void poll();
  /// Tells all ranks that this rank unwinds and drops messages: they must not leave its sends
  /// without a receive. The failure itself follows, when its reason is known.
  void announce_leaving();
  /// Whether a peer has announced that it unwinds; whether any has.
  bool is_leaving(int peer) const { return leaving_[peer]; }
  bool any_leaving() const { return any_leaving_; }

  /// Whether all notices that were sent are out of this rank's memory.
  bool quiet();
  /// Notices sent to each other rank, and received from `peer`.
  std::int64_t sent() const { return notices_sent_; }
  std::int64_t received(int peer) const { return notices_received_[peer]; }

 private:
  /// Leaving: the sender unwinds, see announce_leaving(). Failure: the group has failed.
  enum class Kind : std::int32_t { Leaving, Failure };

  struct Notice {
    Kind kind = Kind::Failure;
    std::int32_t rank = -1;
    std::array<char, 1016> reason = {};  ///< Padded with zeros; never full.
  };

  /// A notice on its way. It stays where it is until MPI has sent it.
  struct Outgoing {
    Notice notice;
    std::vector<MPI_Request> requests;
  };

  /// Starts to send a copy of the notice to every other rank.
  void send_to_all(const Notice& notice);

  const MPI_Comm comm_;
  int self_ = 0;
  int world_ = 1;

  std::mutex mutex_;  ///< Guards the first failure while it is recorded.
  std::atomic<bool> raised_{false};
  int failed_rank_ = -1;
  std::string text_;
  bool own_ = false;  ///< The first failure is one of this rank.

  // The rest is guarded by the lock of MpiProcess.

  bool sent_ = false;
  bool announced_leaving_ = false;
  bool any_leaving_ = false;
  std::vector<char> leaving_;
  std::list<Outgoing> outgoing_;
  std::int64_t notices_sent_ = 0;
  std::vector<std::int64_t> notices_received_;
};

}  // namespace armillary::comm
