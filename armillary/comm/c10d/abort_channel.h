// abort_channel.h: the failure of a group of processes, and the way it reaches all ranks beside the
// data. Internal to c10d.h.
//
//   rank 2   raise(2, reason) --- notice ---> a thread for each peer, on ranks 0, 1, 3 -> raised
//   rank 1   is killed: its connections close ---> rank 0, 2, 3 raise(1, ..)
//
// Notices travel in a group of Gloo of their own, so no message of data is before them. A rank that
// waits for long asks on the same way how far others are (heartbeat.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "armillary/comm/c10d/gloo.h"
#include "armillary/comm/liveness/heartbeat.h"
#include "armillary/comm/liveness/peer_process.h"
#include "armillary/comm/notice.h"
#include "armillary/core/error.h"

namespace armillary::comm {

/// Calls back, from threads of the abort channel or the one that raises; they must not call the
/// abort channel.
struct C10dAbortChannelHooks {
  std::function<void()> on_raise;  ///< Once, when the failure is known.
  std::function<void(int rank, const Heartbeat& heartbeat)> on_answer;
};

/// One rank's end of the abort channel. Only the first failure counts, as this rank sees it.
/// Functions may be called from any thread, except leave().
class C10dAbortChannel {
 public:
  /// `control` is a group of Gloo that carries nothing else. `heartbeat` is the answer to ranks
  /// that ask. `processes` are those of the ranks, for texts.
  C10dAbortChannel(GlooBackend control, std::vector<PeerProcess> processes, OwnHeartbeat& heartbeat,
                   C10dAbortChannelHooks hooks);
  C10dAbortChannel(const C10dAbortChannel&) = delete;
  C10dAbortChannel& operator=(const C10dAbortChannel&) = delete;
  /// Gives notices a moment to leave, then closes the connections.
  ~C10dAbortChannel();

  /// Records the first failure, in the name of `rank`, and tells the peers; does nothing for later
  /// ones. Does not wait.
  void raise(int rank, const std::string& reason);
  bool raised() const { return raised_.load(std::memory_order_acquire); }
  /// Whether a failure is known now or within `time`.
  bool wait_raised(std::chrono::milliseconds time);
  /// The rank that failed first. Requires raised().
  int failed_rank() const { return failed_rank_; }
  /// "rank R failed: <reason>". Requires raised().
  CommError error() const;

  /// Asks a rank for its heartbeat, unless its answer to the last question is still missing.
  void ask(int rank);
  std::string name(int rank) const { return name_of(rank, processes_[rank]); }

  // A rank that leaves because of another's failure passes that on: nobody knows that it left and
  // not why.

  /// Tells the peers that this rank has left, and returns when all have, or one has failed.
  void leave();
  /// Tells the peers that this rank has left; the destructor waits a second at most for them to
  /// hear it. `went_on`: it waited for its timeout for peers that have not heard of its failure.
  void tell_left(bool went_on);
  /// Whether the group is over for a rank that was not in its last call: the rank that failed went
  /// on without it, or, if none has failed, one has left.
  bool is_left();
  /// Whether the rank that failed told so itself. Requires raised().
  bool is_told();
  /// Returns when every peer that is there has failed itself, or left because of this failure, or
  /// after `time`. Whether they have.
  bool wait_told(std::chrono::milliseconds time);

 private:
  /// A notice on its way. It stays where it is until Gloo has sent it.
  struct GlooNotice {
    Notice notice;
    std::vector<GlooWork> works;
  };

  /// The one question, or answer, to a peer that is under way. A question was received when its
  /// answer comes, and an answer when the next question comes: so nothing is waited for in vain.
  struct Single {
    Notice notice;
    GlooWork work;
  };

  /// A peer, as this rank knows it.
  struct Peer {
    bool owes_answer = false;  ///< It owes an answer.
    bool left = false;
    bool went_on = false;  ///< It has left, and waited long enough before.
    bool failed = false;   ///< It has failed for a reason of its own.
    bool heard = false;    ///< It knows that this rank has left.
    bool gone = false;     ///< Its connection is closed.
  };

  /// Whether `is_so` holds for all peers. Requires the lock.
  template <class Condition>
  bool all_peers(const Condition& is_so) const;
  /// Records the failure unless there is one. Returns whether it is the first.
  bool record(int rank, const std::string& reason);
  /// Every other rank.
  std::vector<int> peers() const;
  /// Starts to send a copy of the notice to each of these ranks. Requires the lock.
  void send(const Notice& notice, const std::vector<int>& peers);
  void send_left(bool went_on);
  /// The notices so far; those of threads that still listen may follow.
  std::vector<const GlooNotice*> pending_notices();
  /// The thread of one peer: takes its notices until it has left or is gone.
  void listen(int peer);
  void listen_to_notices(int peer);
  void take(const Notice& notice, int peer);
  /// The rank has failed for a reason of its own, and told so.
  void set_failed(int rank);
  /// Sends, in place of one before that was received.
  void send_single(Single& single, const Notice& notice, int peer);

  const GlooBackend control_;
  const std::vector<PeerProcess> processes_;
  OwnHeartbeat& heartbeat_;
  const C10dAbortChannelHooks hooks_;

  std::mutex order_;  ///< Held while this rank tells all others; locked before `mutex_`.
  std::mutex mutex_;  ///< Guards all that follows, and calls of `control_` except waits.
  std::condition_variable changed_;
  std::atomic<bool> raised_{false};
  int failed_rank_ = -1;
  std::string text_;
  std::vector<Peer> peers_;      ///< Per rank.
  bool has_left_ = false;        ///< This rank has told that it left.
  bool wants_heard_ = false;     ///< The destructor waits until peers have heard of it.
  std::vector<Single> asks_;     ///< Per rank.
  std::vector<Single> answers_;  ///< Per rank; used by its thread alone.
  bool closing_ = false;
  std::list<GlooNotice> outgoing_;
  std::vector<Notice> incoming_;     ///< Per rank: memory of the receive that its thread waits for.
  std::vector<GlooWork> listening_;  ///< Per rank: that receive.
  std::vector<std::thread> threads_;
};

}  // namespace armillary::comm
