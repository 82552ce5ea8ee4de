// group.h: the state of one rank of a group of processes: messages under way, and the threads that
// wait for them. Internal to c10d.h.
//
//   queue      the messages of one direction, peer and lane, which end in order
//   wait()     for one request: the rank itself waits for the first messages of its queue
//   is_complete(), wait_any()    hand the queues to workers, as Gloo cannot be asked whether a
//                                message is over: a worker waits for one queue at a time
//
// One thread at a time waits for a queue (`has_waiter`); all others wait for `changed_`.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "armillary/comm/c10d.h"
#include "armillary/comm/c10d/abort_channel.h"
#include "armillary/comm/c10d/connect.h"
#include "armillary/comm/c10d/pending.h"
#include "armillary/comm/c10d/transfer.h"
#include "armillary/comm/liveness/heartbeat.h"
#include "armillary/comm/liveness/watchdog.h"
#include "armillary/comm/peer_wait.h"

namespace armillary::comm {

/// One rank's end of the group. Functions are called on the rank's thread, except abort().
class C10dGroup {
 public:
  using Pending = C10dPending;

  /// `timeout_s`: for ranks that do not leave.
  C10dGroup(C10dConnections connections, double timeout_s);
  C10dGroup(const C10dGroup&) = delete;
  C10dGroup& operator=(const C10dGroup&) = delete;
  /// Requires that no request is left. Ends the threads.
  ~C10dGroup();

  int rank() const { return data_->getRank(); }
  int world() const { return data_->getSize(); }

  // The calls of Communicator.

  void start(std::span<const Message> batch, std::span<Request> requests);
  bool is_complete(const C10dPending& request);
  /// `describe` names the requests in the text of a missed deadline.
  std::size_t wait_any(std::span<const Request> requests, double timeout_s,
                       const std::function<std::string()>& describe);
  /// A wait for peers without a message of this group, such as for NCCL's (peer_wait.h).
  std::unique_ptr<PeerWait> begin_peer_wait(PeerWaitOptions options);
  /// Takes back a message that is not done. Fails the group unless an exception is unwinding.
  void withdraw(C10dPending& request);
  /// @throws CommError if the group has failed, after Gloo has let go of all memory.
  void throw_if_failed();
  /// Fails the group in the name of this rank, from any thread.
  void abort(const std::string& reason) noexcept;

  /// Returns when all ranks have called it, or one has failed.
  void leave();
  /// Leaves without waiting: peers that still send to this rank fail.
  void tell_left() { abort_channel_->tell_left(went_on_); }
  /// As JoinedCommunicator (c10d.h).
  bool is_left() { return abort_channel_->is_left(); }
  bool is_told() { return abort_channel_->raised() && abort_channel_->is_told(); }
  void wait_told(double most_s);
  /// The rank that failed first, if the group has failed.
  std::optional<int> failed_rank() const;
  CommError error() const { return abort_channel_->error(); }

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  using Queue = C10dQueue;
  using Key = std::tuple<Direction, int, int>;  ///< Direction, peer, lane.

  /// Waits for the first message of the queue, which the caller has, without the lock. Returns
  /// whether it is done; if not, the group has failed, or the message was withdrawn.
  bool finish_first(Lock& lock, Queue& queue);
  /// The rank's own wait for one message; returns early if a worker has its queue.
  void finish_until(Lock& lock, const C10dPending& request);
  /// Hands a queue to a worker, unless somebody waits for it already.
  void hand_over(Queue& queue);
  /// A thread that takes queues and waits for their messages.
  void work();
  /// Fails the group because the connection to a peer broke; the peer's own reason comes first, if
  /// it has one.
  void lose(int peer, const std::string& reason);
  void interrupt_all();
  /// Takes all memory from Gloo.
  void settle();
  /// Closes the connections, which may be the caller's: messages that were cut off are in them.
  void close_connections();

  const GlooStore store_;  ///< Lives until all ranks have left.
  const GlooBackend data_;
  PackBuffers buffers_;

  std::mutex mutex_;                  ///< Guards all that follows.
  std::condition_variable changed_;   ///< A message is done, a queue is free, or the group failed.
  std::condition_variable has_work_;  ///< A queue was handed over, or workers shall end.
  std::map<Key, Queue> queues_;
  std::deque<Queue*> handed_over_;
  /// Works that are over: those since the last start(), and those before. Dropping a work waits
  /// for Gloo's thread to leave it, by yielding the core, which takes long on a busy machine; later
  /// it has left.
  std::vector<GlooWork> over_;
  std::vector<GlooWork> long_over_;
  int idle_workers_ = 0;
  bool closing_ = false;
  std::atomic<std::uint64_t> messages_done_{0};
  std::vector<std::thread> workers_;
  const double leave_timeout_s_;
  OwnHeartbeat heartbeat_;
  /// This rank failed, and waited for its timeout for those that have not heard of it.
  std::atomic<bool> went_on_{false};
  std::optional<C10dAbortChannel> abort_channel_;  ///< Its threads call this object.
  std::unique_ptr<Watchdog>
      watchdog_;  ///< Deadlines; calls the abort channel, whose answers go there.
};

}  // namespace armillary::comm
